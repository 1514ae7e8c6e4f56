package discovery_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// doorFiles writes a Gateway and its certificate, and returns the folders of both.
func doorFiles(t *testing.T) (mesh, certificates string) {
	t.Helper()
	mesh, certificates = t.TempDir(), t.TempDir()
	certificate, key := newAuthority(t).issue(t, 1, "door")
	writePair(t, certificates, certificate, key)
	write(t, filepath.Join(mesh, "door.yaml"),
		fmt.Sprintf(doorGateway, "door", parts.FreePort(t), certificates))
	return mesh, certificates
}

// TestCertificates_ConcurrentInspectionsAllEnd: concurrent reloads inspect the same files, and all
// of them return.
func TestCertificates_ConcurrentInspectionsAllEnd(t *testing.T) {
	mesh, _ := doorFiles(t)
	server := startWatching(t, mesh, discovery.Options{Namespace: "shop"})
	feedOf(t, server, "router")
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 50 {
				if found := server.UnreadableSecretFiles(); len(found) > 0 {
					t.Errorf("readable files: %v", found)
					return
				}
			}
		})
	}
	callers.Wait()
}

// TestRescan_TriesRefusedVersionsOnlyAfterAChange: a check of the mesh configuration, which scans
// all files, does not send Envoy a version that it has refused, unless a certificate changed
// meanwhile.
func TestRescan_TriesRefusedVersionsOnlyAfterAChange(t *testing.T) {
	mesh, certificates := doorFiles(t)
	write(t, filepath.Join(mesh, "a.yaml"), fmt.Sprintf(webEntry, "a", "10.0.0.1"))
	write(t, filepath.Join(mesh, "rule.yaml"), rule("1s"))
	l := &runs{t: t, server: startWatching(t, mesh, discovery.Options{Namespace: "shop"})}
	feedOf(t, l.server, "router")
	write(t, filepath.Join(mesh, "rule.yaml"), rule("2s"))
	rescan := func() {
		t.Helper()
		if err := l.server.Rescan(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	rescan()
	if got := l.timeout(); got != "2s" {
		t.Fatalf("timeout %q", got)
	}
	feed := feedOf(t, l.server, "sidecar")
	feed.Refuse(resource.Client{}, resource.Nack{Resource: l.newest(resource.ClusterType, clusterOfA),
		Reason: "too long"})
	attempt := func() int {
		snapshot, _ := feed.Current()
		return snapshot.Refusal(resource.Key{Type: resource.ClusterType, Name: clusterOfA}).Retries
	}
	for range 3 {
		rescan()
		if n := attempt(); n > 0 {
			t.Errorf("tried again after a scan: %d", n)
		}
	}
	certificate, key := newAuthority(t).issue(t, 2, "door")
	writePair(t, certificates, certificate, key)
	rescan()
	eventually(t, "another attempt", func() (bool, string) { return attempt() == 1, "" })
}
