package discovery_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// TestCertificates_HangingFileSystemDelaysItsSecretOnly serves two Gateways, one of them with a
// certificate on a file system that does not answer. The server serves everything else, and that
// certificate once the file system answers.
func TestCertificates_HangingFileSystemDelaysItsSecretOnly(t *testing.T) {
	a, mesh, hanging, other := newAuthority(t), t.TempDir(), t.TempDir(), t.TempDir()
	for serial, folder := range []string{hanging, other} {
		certificate, key := a.issue(t, int64(serial), "door")
		writePair(t, folder, certificate, key)
	}
	gateway := func(name, folder string) {
		write(t, filepath.Join(mesh, name+".yaml"), fmt.Sprintf(doorGateway, name,
			parts.FreePort(t), folder))
	}
	gateway("first", hanging)
	gateway("second", other)
	release := parts.HangingMount(t, hanging)
	server := startWatching(t, mesh, discovery.Options{Namespace: "shop"})
	// each call may wait at most once for the file system, for 100 ms
	timed := func(what string, call func()) { t.Helper(); inTime(t, what, call) }
	var feed *resource.Feed
	timed("a new proxy", func() { feed = feedOf(t, server, "router") })
	secret := func(folder string) string {
		snapshot, _ := feed.Current()
		for name, r := range snapshot.ByType(resource.SecretType) {
			if strings.Contains(name, folder) {
				return r.Version
			}
		}
		return ""
	}
	listeners := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprint(want, " listeners"), func() (bool, string) {
			snapshot, _ := feed.Current()
			return len(snapshot.ByType(resource.ListenerType)) == want,
				fmt.Sprint(snapshot.ByType(resource.ListenerType))
		})
	}
	listeners(2)
	eventually(t, "the other secret", func() (bool, string) { return secret(other) != "", "" })
	if version := secret(hanging); version != "" {
		t.Errorf("the secret of %s is served, so that Envoy hangs, too", hanging)
	}
	reported := func() (bool, string) {
		problems := server.Problems()
		return slices.ContainsFunc(problems, func(p discovery.Problem) bool {
			return strings.HasPrefix(p.Message, hanging+"/cert.pem could not be read yet")
		}), fmt.Sprint(problems)
	}
	timed("the problems", func() { eventually(t, "the problem", reported) })
	timed("the readiness", func() {
		if why := server.ResourcesWithheldReason(); why != "" {
			t.Errorf("closed: %s", why)
		}
	})
	timed("a reload", func() {
		if err := server.Configure(discovery.Settings{Namespace: "shop"}); err != nil {
			t.Error(err)
		}
	})
	timed("a rescan", func() {
		if err := server.Rescan(context.Background()); err != nil {
			t.Error(err)
		}
	})
	gateway("third", other)
	listeners(3)
	before := secret(other)
	certificate, key := a.issue(t, 3, "door")
	writePair(t, other, certificate, key)
	eventually(t, "the renewed certificate", func() (bool, string) {
		return secret(other) != before, before
	})
	if ok, problems := reported(); !ok {
		t.Errorf("it still hangs, but problems are %s", problems)
	}
	release()
	eventually(t, "the late secret", func() (bool, string) { return secret(hanging) != "", "" })
	noProblems(t, server)
}

// inTime fails the test if a call takes 5 s.
func inTime(t *testing.T, what string, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); call() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Fatalf("%s waits for the file system", what)
	}
}

// TestMeshConfig_HangingFileSystemDelaysNoOtherCall: while a reload, or the server after a file
// event, waits for the hanging file system of MeshConfig, other calls do not wait.
func TestMeshConfig_HangingFileSystemDelaysNoOtherCall(t *testing.T) {
	objects, hanging := t.TempDir(), t.TempDir()
	write(t, filepath.Join(objects, "a.yaml"), fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	file := filepath.Join(hanging, "mesh.yaml")
	write(t, file, "connectTimeout: 3s")
	settings := discovery.Settings{Namespace: "shop", MeshConfigFile: file}
	for what, begin := range map[string]func(*discovery.Server, chan<- []string){
		"a reload": func(server *discovery.Server, _ chan<- []string) {
			if err := server.Configure(settings); err != nil {
				t.Error(err)
			}
		},
		"a change": func(_ *discovery.Server, changes chan<- []string) {
			changes <- []string{file}
			changes <- nil // the server receives this once it has processed the previous change
		},
	} {
		t.Run(what, func(t *testing.T) {
			server, changes := start(t, discovery.Options{Files: []string{objects},
				Namespace: "shop", Settings: settings})
			l := &runs{t: t, server: server}
			if got := l.timeout(); got != "3s" {
				t.Fatalf("timeout %q", got)
			}
			release := parts.HangingMount(t, hanging)
			done := make(chan struct{})
			go func() { defer close(done); begin(server, changes) }()
			parts.Eventually(t, time.Minute, "the file is read", func() bool {
				stacks := make([]byte, 1<<20)
				return bytes.Contains(stacks[:runtime.Stack(stacks, true)],
					[]byte("/meshfile.Read("))
			})
			inTime(t, "a new proxy", func() { feedOf(t, server, "router") })
			inTime(t, "the problems", func() { server.Problems() })
			inTime(t, "the metrics", func() { server.Stats() })
			select {
			case <-done:
				t.Error("it does not wait for the file system: the test shows nothing")
			default:
			}
			release()
			<-done
			if got := l.timeout(); got != "3s" {
				t.Errorf("afterwards: timeout %q", got)
			}
		})
	}
}
