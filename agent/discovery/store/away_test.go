package store

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/discovery/object"
)

// TestAway_RetainsObjects unmounts a file system below a configured directory, both at its mount
// point and behind a link to it. The objects stay in force, also in the next store, until the file
// system is mounted again or the directory is removed.
func TestAway_RetainsObjects(t *testing.T) {
	const policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n" +
		"metadata: {name: x}\nspec: {}\n"
	unmount := func(path string) {
		t.Helper()
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	for _, by := range []string{"mount point", "link", "removed link", "configured directory"} {
		for _, end := range []string{"mounted again", "removed"} {
			f := newFiles(t)
			mount, folder, problem := f.path("shared"), "shared", "may be a mount point"
			if by == "configured directory" {
				mount, folder = f.directory, "below"
			}
			if strings.Contains(by, "link") {
				mount, problem = t.TempDir(), "is a link to what is gone"
				if err := os.Symlink(mount, f.path("shared")); err != nil {
					t.Fatal(err)
				}
			} else if err := os.MkdirAll(mount, 0o755); err != nil {
				t.Fatal(err)
			}
			if by == "link" {
				problem = "may be a mount point"
			}
			if err := unix.Mount("none", mount, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			mounted := true
			t.Cleanup(func() {
				if mounted {
					unmount(mount)
				}
			})
			fill := func() {
				if by == "configured directory" {
					f.write("below/x.yaml", policy)
				} else {
					f.write("shared/deep/x.yaml", policy)
				}
			}
			f.write("a.yaml", entry("a", "a.test"))
			fill()
			f.store.Load()
			unmount(mount)
			mounted = false
			if by == "removed link" {
				if err := os.Remove(mount); err != nil {
					t.Fatal(err)
				}
			}
			inForce := func(what string, want bool) {
				t.Helper()
				if got := slices.ContainsFunc(f.store.Objects("ns"), func(o *object.Object) bool {
					return o.Name == "x"
				}); got != want {
					t.Errorf("%s, %s, %s: the policy is in force: %v", by, end, what, got)
				}
				if got := strings.Contains(fmt.Sprint(f.store.Problems()), problem); got != want {
					t.Errorf("%s, %s, %s: problems %v", by, end, what, f.store.Problems())
				}
			}
			f.store.Reload([]string{f.path(folder + "/deep/x.yaml"), f.path(folder)})
			inForce("unmounted", true)
			f.store.Load()
			inForce("read again", true)
			f.again()
			if changes := f.store.Load(); !slices.ContainsFunc(changes, func(c object.Change) bool {
				return c.New != nil && c.New.Name == "x"
			}) {
				t.Errorf("%s: changes of the next store: %v", by, changes)
			}
			inForce("the next store", true)
			f.store.Load()
			f.again()
			f.store.Load()
			inForce("the one after", true)
			if by == "configured directory" {
				continue
			}
			problem = "stays in force"
			if end == "removed" {
				f.remove(folder)
				f.store.Reload([]string{f.path(folder)})
				inForce(end, false)
				continue
			}
			if by == "removed link" {
				if err := os.Mkdir(mount, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Mount("none", mount, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			mounted = true
			fill()
			f.store.Reload([]string{f.path(folder + "/deep")})
			if len(f.store.Problems()) > 0 || len(f.store.MissingPaths()) > 0 {
				t.Errorf("%s, %s: %v %v", by, end, f.store.Problems(), f.store.MissingPaths())
			}
			f.remove(folder + "/deep")
			f.store.Load()
			inForce("deleted", false)
		}
	}
}

// TestAway_NotByRemoval removes directories and links: their objects are deleted.
func TestAway_NotByRemoval(t *testing.T) {
	for _, link := range []bool{false, true} {
		f := newFiles(t)
		f.write("a.yaml", entry("a", "a.test"))
		if link {
			other := t.TempDir()
			if err := unix.Mount("none", other, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(other, unix.MNT_DETACH) })
			f.write("shared/y.yaml", entry("y", "y.test"))
			if err := os.Symlink(other, f.path("shared/link")); err != nil {
				t.Fatal(err)
			}
			f.write("shared/link/b.yaml", entry("b", "b.test"))
			f.store.Load()
			f.remove("shared/y.yaml")
			f.remove("shared/link")
		} else {
			f.write("shared/b.yaml", entry("b", "b.test"))
			f.store.Load()
			f.remove("shared")
		}
		f.store.Load()
		if all := f.store.Objects("ns"); len(all) != 1 || len(f.store.Problems()) > 0 {
			t.Errorf("link %v: %v %v", link, all, f.store.Problems())
		}
	}
}

// TestAway_Links breaks a link to a directory with a policy. The policy stays in force, and a new
// agent serves nothing.
func TestAway_Links(t *testing.T) {
	for target, how := range map[string]string{"shared": "is a link to what is gone",
		"a.yaml": "is a link to what is gone", "a.yaml/x": "is a link to what is gone"} {
		f := newFiles(t)
		f.write("a.yaml", entry("a", "a.test"))
		if err := os.Symlink(t.TempDir(), f.path("shared")); err != nil {
			t.Fatal(err)
		}
		f.write("shared/x.yaml", deniesA)
		f.nextRun(false)
		f.remove("shared")
		if err := os.Symlink(target, f.path("shared")); err != nil {
			t.Fatal(err)
		}
		known := f.store
		f.nextRun(false)
		f.closedBy(target+", next agent", how)
		f.store = known
		f.store.Load()
		f.expectProblems(how + ": its 1 file stays in force")
		if !f.hasPolicy("x") {
			t.Errorf("%s: the policy is not in force", target)
		}
	}
}

// TestAway_ConfiguredLink: a configured path is a link to a file with a policy. The policy stays in
// force while the file does not exist, also in the next store, until the file exists again.
func TestAway_ConfiguredLink(t *testing.T) {
	f := newFiles(t)
	f.write("../target.yaml", deniesA)
	t.Cleanup(func() { f.remove("../target.yaml") })
	if err := os.Symlink("../target.yaml", f.path("x.yaml")); err != nil {
		t.Fatal(err)
	}
	f.store.options.Paths = []string{f.path("x.yaml")}
	for range 2 {
		f.nextRun(false)
		f.closedBy("at first", "")
		f.expectProblems()
		f.remove("../target.yaml")
		f.store.Load()
		f.expectProblems("stays in force as last read")
		f.nextRun(false)
		f.expectProblems("stays in force as last read")
		f.write("../target.yaml", deniesA)
		f.store.Load()
		f.expectProblems()
		f.closedBy("back", "")
		if !f.hasPolicy("x") || len(f.store.MissingPaths()) > 0 {
			t.Errorf("away %v, problems %v", f.store.MissingPaths(), f.problems())
		}
	}
}
