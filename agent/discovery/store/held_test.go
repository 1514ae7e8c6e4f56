package store

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
)

// again replaces the store by a new one that starts with its held objects, as after a restart.
func (f *files) again() {
	f.store = New(Options{Paths: f.store.options.Paths, Namespace: "ns", Validate: validateObject,
		LastGood: f.store.LastGoodObjects(), MissingPaths: f.store.MissingPaths()})
}

func (f *files) expectHeld(what string, names ...string) {
	f.t.Helper()
	var got []string
	for _, o := range f.store.LastGoodObjects() {
		got = append(got, strings.TrimPrefix(o.File, f.directory+"/")+" "+o.Name)
	}
	if diff := cmp.Diff(names, got); diff != "" {
		f.t.Errorf("held %s (-want +got):\n%s", what, diff)
	}
}

func TestHeld_ByNextStore(t *testing.T) {
	f := newFiles(t)
	bad := strings.Replace(entry("b", "b2.test"), "STATIC", "STATISCH", 1)
	f.write("all.yaml", entry("a", "a.test")+"---\n"+entry("b", "b.test"))
	f.write("broken.yaml", entry("c", "c.test")+"---\n"+entry("d", "d.test"))
	f.write("large.yaml", entry("e", "e.test"))
	f.store.Load()
	f.expectHeld("of what is good")
	f.again()
	f.expect("nothing was bad", f.store.Load(), "a: - → a.test", "b: - → b.test",
		"c: - → c.test", "d: - → d.test", "e: - → e.test")

	f.write("all.yaml", entry("a", "a.test")+"---\n"+bad)
	f.write("broken.yaml", "a: [\n---\n"+entry("d", "d.test"))
	f.write("large.yaml", entry("e", "e2.test"))
	if err := os.Truncate(f.path("large.yaml"), maxFile+1); err != nil {
		t.Fatal(err)
	}
	f.expect("made bad", f.store.Load())
	for range 2 { // restarts twice, because the second store must also retain the objects
		f.expectHeld("of what is bad", "all.yaml b", "broken.yaml c", "large.yaml e")
		before, problems := f.store.LastGoodObjects(), f.problems()
		f.again()
		f.expect("bad still", f.store.Load(), "a: - → a.test", "b: - → b.test", "c: - → c.test",
			"d: - → d.test", "e: - → e.test")
		if diff := cmp.Diff(problems, f.problems()); diff != "" {
			t.Errorf("problems (-before +after):\n%s", diff)
		}
		for i, o := range f.store.LastGoodObjects() {
			if o != before[i] {
				t.Errorf("%s is held anew", o)
			}
		}
	}

	f.write("all.yaml", entry("a", "a.test")+"---\n"+entry("b", "b3.test"))
	f.write("broken.yaml", entry("d", "d.test"))
	f.remove("large.yaml")
	f.again()
	f.expect("cured or gone meanwhile", f.store.Load(), "a: - → a.test", "b: - → b3.test",
		"d: - → d.test")
	f.expectHeld("of what is cured or gone")
	f.expectProblems()
}

// TestHeld_AtItsLine breaks a PeerAuthentication and moves it down in its file. An older
// PeerAuthentication, which precedes it in the file, still has precedence.
func TestHeld_AtItsLine(t *testing.T) {
	late := strings.NewReplacer("STRICT", "PERMISSIVE", "name: mtls", "name: late").Replace(strict)
	for name, broken := range map[string]string{
		"unknown field": strings.Replace(late, "mode:", "mod:", 1),
		"no YAML":       strings.Replace(late, "  mtls:", "\tmtls:", 1),
	} {
		f := newFiles(t)
		f.write("x.yaml", strict+"---\n"+late)
		f.store.Load()
		f.write("x.yaml", strings.Repeat("# comment\n", 20)+strict+"---\n"+broken)
		for _, when := range []string{"running", "the next agent"} {
			f.store.Load()
			var got []string
			for _, o := range f.store.Objects("ns") {
				got = append(got, o.Name)
			}
			if diff := cmp.Diff([]string{"mtls", "late"}, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, when, diff)
			}
			f.again()
		}
	}
}

func TestHeld_BelongsToItsFile(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", entry("a", "a.test"))
	f.store.Load()
	f.write("a.yaml", "a: [")
	f.store.Load()
	f.remove("a.yaml")
	f.write("b.yaml", "a: [")
	f.again()
	f.expect("another file is bad now", f.store.Load())
	f.expectHeld("of a file that is gone")
	f.write("a.yaml", "a: [")
	f.expect("the file is there again", f.store.Load())

	f.write("a.yaml", entry("a", "a.test"))
	f.store.Load()
	f.write("a.yaml", "a: [")
	f.store.Load()
	f.store.options.Paths = []string{f.path("b.yaml")}
	f.again()
	f.store.Load()
	f.expectHeld("of what is read no more")
}

func TestHeld_WaitsForItsFolder(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", entry("a", "a.test"))
	f.store.Load()
	f.write("a.yaml", "a: [")
	f.store.Load()
	away := f.directory + ".away"
	if err := os.Rename(f.directory, away); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(away) })
	f.again()
	f.expect("not there yet", f.store.Load())
	f.expectHeld("of a folder that is not there", "a.yaml a")
	if n := f.store.CountLastGoodAwaitingFiles(); n != 1 {
		t.Errorf("%d wait for their folder", n)
	}
	if err := os.Rename(away, f.directory); err != nil {
		t.Fatal(err)
	}
	f.expect("there", f.store.Reload([]string{f.directory}), "a: - → a.test")
	f.expectHeld("of a folder that is there", "a.yaml a")
	if n := f.store.CountLastGoodAwaitingFiles(); n != 0 {
		t.Errorf("%d wait for a folder that is there", n)
	}
}

// TestHeld_UnreadableFiles removes the permission to read a file, to list a directory, or to search
// it. The objects that were read before stay in force, also in the next store.
func TestHeld_UnreadableFiles(t *testing.T) {
	for _, test := range []struct {
		name, path string
		mode       os.FileMode
		held       []string
	}{
		{"a file", "below/a.yaml", 0, []string{"below/a.yaml a"}},
		{"a folder that cannot be listed", "below", 0o311, []string{"below/a.yaml a",
			"below/b.yaml b"}},
		{"a folder that cannot be searched", "below", 0o644, []string{"below/a.yaml a",
			"below/b.yaml b"}},
		{"a folder that cannot be read at all", "below", 0, []string{"below/a.yaml a",
			"below/b.yaml b"}},
		{"all that is configured", ".", 0o644, []string{"a.yaml z", "below/a.yaml a",
			"below/b.yaml b", "c.yaml c"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFiles(t)
			f.write("a.yaml", entry("z", "z.test"))
			f.write("below/a.yaml", entry("a", "a.test"))
			f.write("below/b.yaml", entry("b", "b.test"))
			f.write("c.yaml", entry("c", "c.test"))
			// t.TempDir permits only its owner, root, to enter it
			for _, folder := range []string{f.directory, filepath.Dir(f.directory)} {
				if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // of tests
					t.Fatal(err)
				}
			}
			withoutRights(t)
			f.expect("at first", f.store.Load(), "a: - → a.test", "b: - → b.test", "c: - → c.test",
				"z: - → z.test")
			asRoot(t, func() error { return os.Chmod(f.path(test.path), test.mode) })
			for _, when := range []string{"read again", "once more"} {
				f.expect(when, f.store.Load())
				f.expectHeld(when, test.held...)
			}
			problems := f.store.Problems()
			if len(problems) == 0 {
				t.Fatal("nothing is told")
			}
			if file := f.path(test.path); strings.HasSuffix(file, ".yaml") {
				got := problems[0].String()
				if problems[0].Severity != condition.Error ||
					!strings.Contains(got, " cannot read it; chgrp ") ||
					!strings.HasSuffix(got, "; chmod 640 "+file) {
					t.Errorf("no cure in %s", got)
				}
			} else if got := problems[0].String(); !strings.Contains(got, " cannot read "+file+"; ") ||
				!strings.HasSuffix(got, "; chmod g+rx "+file) {
				t.Errorf("no cure of the folder in %s", got)
			}
			f.again()
			f.expect("by the next store", f.store.Load(), "a: - → a.test", "b: - → b.test",
				"c: - → c.test", "z: - → z.test")
			f.expectHeld("by the next store", test.held...)
			asRoot(t, func() error {
				mode := os.FileMode(0o755)
				if strings.HasSuffix(test.path, ".yaml") {
					mode = 0o644
				}
				return os.Chmod(f.path(test.path), mode)
			})
			f.store.Load()
			f.expectProblems()
			f.expectHeld("of what can be read")
		})
	}
}

const nobody = 65534

// withoutRights drops the privileges of the whole process until the test ends, if it runs as root.
// A single thread is not enough, because the store's goroutines may run on any thread.
func withoutRights(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	if err := syscall.Seteuid(nobody); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Seteuid(0); err != nil {
			panic(err) // without its privileges, the process cannot run other tests
		}
	})
}

// asRoot calls do with the privileges that withoutRights has dropped.
func asRoot(t *testing.T, do func() error) {
	t.Helper()
	effective := os.Geteuid()
	if os.Getuid() == 0 {
		if err := syscall.Seteuid(0); err != nil {
			t.Fatal(err)
		}
	}
	err := do()
	if os.Getuid() == 0 {
		if err := syscall.Seteuid(effective); err != nil {
			t.Fatal(err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
