package discovery_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// TestCertificates_HangingFileSystemDelaysItsSecretOnly has two Gateways, one with a certificate on
// a file system that does not answer. The server serves everything else, and that certificate
// once the file system answers.
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
	const bound = 5 * time.Second // of a call; each may wait for the file system once, for 100 ms
	timed := func(what string, call func()) {
		t.Helper()
		done := make(chan struct{})
		go func() { defer close(done); call() }()
		select {
		case <-done:
		case <-time.After(bound):
			t.Fatalf("%s waits for the file system", what)
		}
	}
	var feed *resource.Feed
	timed("a new proxy", func() { feed = feedOf(t, server, "router") })
	secret := func(folder string) string {
		snapshot, _ := feed.Current()
		for name, r := range snapshot.Set(resource.SecretType) {
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
			return len(snapshot.Set(resource.ListenerType)) == want,
				fmt.Sprint(snapshot.Set(resource.ListenerType))
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
		if why := server.Closed(); why != "" {
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
