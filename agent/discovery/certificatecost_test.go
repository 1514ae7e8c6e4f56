package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// TestCertificates_CostNoGoroutineEach serves a Gateway with 100 certificates and their keys. All
// are renewed at once, and none of them needs a goroutine or an inotify instance of its own.
func TestCertificates_CostNoGoroutineEach(t *testing.T) {
	const pairs = 100
	a, mesh, folder := newAuthority(t), t.TempDir(), t.TempDir()
	certificate, key := a.issue(t, 1, "door")
	gateway := func(count int) {
		var text strings.Builder
		for i := range count {
			pair := fmt.Sprintf("%s/%d", folder, i)
			writePair(t, pair, certificate, key)
			if i > 0 {
				text.WriteString("---\n")
			}
			fmt.Fprintf(&text, doorGateway, fmt.Sprint("door-", i), 20000+i, pair)
		}
		write(t, filepath.Join(mesh, "doors.yaml"), text.String())
	}
	gateway(1)
	server := startWatching(t, mesh, discovery.Options{Namespace: "shop"})
	feed := feedOf(t, server, "router")
	versions := func() map[string]string {
		found := map[string]string{}
		snapshot, _ := feed.Current()
		for name, r := range snapshot.ByType(resource.SecretType) {
			found[name] = r.Version
		}
		return found
	}
	await := func(count int) {
		t.Helper()
		eventually(t, fmt.Sprint(count, " secrets"), func() (bool, string) {
			return len(versions()) == count, fmt.Sprint(len(versions()))
		})
	}
	await(1)
	before := runtime.NumGoroutine()
	gateway(pairs)
	await(pairs)
	const few = 5 // goroutines of the test itself, and those that are about to end
	parts.Eventually(t, time.Minute, "no goroutine per file", func() bool {
		return runtime.NumGoroutine() <= before+few
	})
	t.Logf("%d goroutines with 2 files, %d with %d", before, runtime.NumGoroutine(), 2*pairs)
	if n := inotifyInstances(t); n > 2 { // one for mesh files and one for certificates
		t.Errorf("%d inotify instances", n)
	}
	earlier := versions()
	certificate, key = a.issue(t, 2, "door")
	gateway(pairs)
	eventually(t, "all are renewed", func() (bool, string) {
		same := 0
		for name, version := range versions() {
			if earlier[name] == version {
				same++
			}
		}
		return same == 0, fmt.Sprint(same, " are not")
	})
}

// inotifyInstances returns the number of inotify instances of this process.
func inotifyInstances(t *testing.T) (count int) {
	t.Helper()
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	must(t, err)
	for _, descriptor := range descriptors {
		if target, err := os.Readlink(descriptor); err == nil && strings.Contains(target, "inotify") {
			count++
		}
	}
	return count
}
