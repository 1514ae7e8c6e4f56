package identity_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/scripts/parts"
)

// All secrets in files share one inotify instance. Each secret that Envoy subscribes to costs only
// the goroutine that reads its files.
func TestFiles_ShareAWatcher(t *testing.T) {
	const pairs = 100
	r := newRig(t, func(r *rig, _ *identity.Options) { r.issue(time.Hour) })
	r.await("the workload's", func() bool { return r.chain("default") != "" })
	before := runtime.NumGoroutine()
	var names []string
	for i := range pairs {
		cert, key := fmt.Sprintf("%d-cert.pem", i), fmt.Sprintf("%d-key.pem", i)
		for to, from := range map[string]string{cert: "cert.pem", key: "key.pem"} {
			text, err := os.ReadFile(r.path(from))
			if err != nil {
				t.Fatal(err)
			}
			r.write(to, text)
		}
		names = append(names, fmt.Sprintf("file-cert:%s~%s", r.path(cert), r.path(key)))
	}
	r.Subscribe(names)
	for _, name := range names {
		r.await(name, func() bool { return r.chain(name) != "" })
	}
	const few = 10 // other goroutines of the Manager, which may have started after the count
	parts.Eventually(t, deadline, "a goroutine per secret", func() bool {
		return runtime.NumGoroutine() <= before+pairs+few
	})
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	instances := 0
	for _, descriptor := range descriptors {
		if target, err := os.Readlink(descriptor); err == nil && strings.Contains(target, "inotify") {
			instances++
		}
	}
	if instances != 1 {
		t.Errorf("%d inotify instances", instances)
	}
}
