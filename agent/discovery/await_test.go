package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestAwait_ServesNothingWithoutAPath: a configured path that does not exist may be on a file
// system that is not mounted yet, and contain a PeerAuthentication. Nothing is served until the
// path exists. A reload or a rescan does not change that.
func TestAwait_ServesNothingWithoutAPath(t *testing.T) {
	for _, end := range []string{"appears", "appears empty", "becomes readable"} {
		t.Run(end, func(t *testing.T) {
			folder := t.TempDir()
			missing, file := filepath.Join(folder, "mount"), filepath.Join(folder, "mesh.yaml")
			write(t, file, fmt.Sprintf(nodePorts, "PERMISSIVE", "10.0.0.1"))
			wrong := "does not exist"
			// a symbolic link to itself is unreadable even for root, who can list every folder
			if end == "becomes readable" {
				must(t, os.Symlink(missing, missing))
				wrong = "cannot be read"
			}
			server, _ := start(t, discovery.Options{Files: []string{file, missing},
				Namespace: "shop", SeparateViewsByAddress: true, AwaitFileListing: true})
			feed := feedOf(t, server, "REDIRECT identity")
			served := func() int {
				snapshot, _ := feed.Current()
				return len(snapshot.ByType(resource.ListenerType))
			}
			if n := served(); n > 0 {
				t.Errorf("%d listeners", n)
			}
			must(t, server.Reload(discovery.Settings{Namespace: "shop"}))
			must(t, server.Rescan(t.Context()))
			for _, want := range []string{missing + ":1: " + wrong,
				"create an empty file " + missing + "/empty.yaml"} {
				if why := server.ResourcesWithheldReason(); !strings.Contains(why, want) {
					t.Errorf("closed: %q lacks %q", why, want)
				}
			}
			switch end {
			case "appears":
				must(t, os.Mkdir(missing, 0o700))
				write(t, filepath.Join(missing, "peers.yaml"), "apiVersion: security.istio.io/v1\n"+
					"kind: PeerAuthentication\nmetadata: {name: default, "+
					"namespace: istio-system}\nspec: {mtls: {mode: STRICT}}\n")
			default:
				must(t, os.RemoveAll(missing))
				must(t, os.Mkdir(missing, 0o700))
			}
			eventually(t, "listeners are served", func() (bool, string) {
				return served() > 0 &&
					server.ResourcesWithheldReason() == "", server.ResourcesWithheldReason()
			})
			must(t, os.RemoveAll(missing))
			if why := server.ResourcesWithheldReason(); why != "" {
				t.Errorf("it existed once: %q", why)
			}
		})
	}
}

// TestAwait_NotWithoutIdentity: without Options.AwaitFileListing, a missing path does not delay
// serving.
func TestAwait_NotWithoutIdentity(t *testing.T) {
	server, _ := start(t, discovery.Options{Files: []string{filepath.Join(t.TempDir(), "none")}})
	if why := server.ResourcesWithheldReason(); why != "" {
		t.Error(why)
	}
}

// TestAwait_OfFoldersWithPolicies empties a folder with a policy between the runs of two agents, as
// unmounting its file system does. The second agent serves nothing until the folder contains a
// file, even if the file of last good versions, which records folders with policies, is damaged.
func TestAwait_OfFoldersWithPolicies(t *testing.T) {
	folder := t.TempDir()
	shared := filepath.Join(folder, "shared")
	must(t, os.Mkdir(shared, 0o700))
	write(t, filepath.Join(shared, "policy.yaml"), deniedPolicies["AuthorizationPolicy"])
	options := discovery.Options{Files: []string{folder}, Namespace: "shop", AwaitFileListing: true,
		LastGoodFile: filepath.Join(t.TempDir(), "last-good.json")}
	first, end := deniedRun(t, options)
	if why := first.ResourcesWithheldReason(); why != "" {
		t.Errorf("the first agent serves nothing: %s", why)
	}
	end()
	must(t, os.Rename(shared, filepath.Join(t.TempDir(), "mounted")))
	must(t, os.Mkdir(shared, 0o700))
	want := shared + ":1: is empty, and may be a mount point: it may have access policies"
	closed := func(when string) {
		t.Helper()
		next, end := deniedRun(t, options)
		defer end()
		if why := next.ResourcesWithheldReason(); !strings.Contains(why, want) {
			t.Errorf("%s: closed by %q, want %q", when, why, want)
		}
	}
	closed("the next agent")
	write(t, options.LastGoodFile, "{")
	closed("with a damaged record")
	closed("after a damaged record")
	write(t, filepath.Join(shared, "empty.yaml"), "")
	last, end := deniedRun(t, options)
	defer end()
	if why := last.ResourcesWithheldReason(); why != "" {
		t.Errorf("with a file: %s", why)
	}
}
