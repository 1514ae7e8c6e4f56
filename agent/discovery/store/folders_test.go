package store

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/discovery/object"
)

const anyPolicy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n" +
	"metadata: {name: x}\nspec: {}\n"

// bind mounts a directory of the same file system on a path below the test's directory, until the
// test ends or unmount is called.
func (f *files) bind(name string) (unmount func()) {
	f.t.Helper()
	if err := os.MkdirAll(f.path(name), 0o755); err != nil {
		f.t.Fatal(err)
	}
	source := f.directory + ".mounted"
	if err := os.MkdirAll(source, 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := unix.Mount(source, f.path(name), "", unix.MS_BIND, ""); err != nil {
		f.t.Fatal(err)
	}
	unmount = func() {
		f.t.Helper()
		if err := unix.Unmount(f.path(name), unix.MNT_DETACH); err != nil &&
			!errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			f.t.Fatal(err)
		}
	}
	f.t.Cleanup(func() {
		unmount()
		_ = os.RemoveAll(source)
	})
	return unmount
}

// nextRun replaces the store by that of a new agent, which awaits its paths.
func (f *files) nextRun(lost bool) {
	f.t.Helper()
	options := f.store.options
	options.AwaitPaths, options.PolicyLocationsIncomplete = true, lost ||
		f.store.PolicyLocationsIncomplete()
	options.LastGood, options.MissingPaths, options.PolicyFolderInodes = f.store.LastGoodObjects(), f.store.MissingPaths(), f.store.PolicyFolderInodes()
	options.PolicyCountsByFile = f.store.PolicyCountsByFile()
	if lost {
		options.LastGood, options.MissingPaths, options.PolicyFolderInodes, options.PolicyCountsByFile = nil, nil, nil, nil
	}
	f.store = New(options)
	f.store.Load()
}

// closedBy compares the reason for which no resources are served with want; "": they are served.
func (f *files) closedBy(what, want string) {
	f.t.Helper()
	p, closed := f.store.PoliciesIncompleteProblem()
	if closed != (want != "") || !strings.Contains(p.String(), want) {
		f.t.Errorf("%s: closed by %q, want %q", what, p, want)
	}
	reported := false
	for _, all := range f.store.Problems() {
		reported = reported || all == p
	}
	if closed && !reported {
		f.t.Errorf("%s: problems %v lack %v", what, f.store.Problems(), p)
	}
}

// TestAway_BindMount unmounts a directory of the same file system while the agent runs. Its objects
// stay in force.
func TestAway_BindMount(t *testing.T) {
	f := newFiles(t)
	unmount := f.bind("shared")
	f.write("shared/x.yaml", entry("x", "x.test"))
	f.expect("mounted", f.store.Load(), "x: - → x.test")
	unmount()
	f.expect("unmounted", f.store.Load())
	f.expectProblems("its 1 file stays in force as last read; mount or move it back, or create an " +
		"empty file " + f.path("shared/empty.yaml"))
	if _, appeared := f.store.AwaitsMissingPaths(); appeared {
		t.Error("it is said to be there")
	}
	f.bind("shared")
	if _, appeared := f.store.AwaitsMissingPaths(); !appeared {
		t.Error("it is said to be away")
	}
	f.expect("mounted again", f.store.Load())
	f.expectProblems()
}

// TestFolders_AwaitedByNextStore makes directories with policies disappear while no agent runs.
// Nothing is served until they are back, or an administrator confirms that they are empty.
func TestFolders_AwaitedByNextStore(t *testing.T) {
	const mount = "may be a mount point: it may have access policies"
	for _, test := range []struct {
		name         string
		away         func(f *files, unmount func())
		closed       string
		returns      func(f *files)
		policyAfters bool
	}{
		{"unmounted and mounted", func(_ *files, unmount func()) { unmount() }, mount,
			func(f *files) { f.bind("shared") }, true},
		{"unmounted and empty", func(_ *files, unmount func()) { unmount() }, mount,
			func(f *files) { f.write("shared/empty.yaml", "") }, false},
		{"unmounted and removed", func(_ *files, unmount func()) { unmount() }, mount,
			func(f *files) { f.remove("shared") }, false},
		{"below a mount point", func(f *files, unmount func()) {
			f.remove("shared/x.yaml")
			f.write("shared/below/x.yaml", anyPolicy)
			f.nextRun(false)
			unmount()
		}, mount, func(f *files) { f.bind("shared") }, true},
		{"a link", func(f *files, _ func()) {
			f.write("../elsewhere/y.yaml", strings.Replace(anyPolicy, "name: x", "name: y", 1))
			if err := os.Symlink("../elsewhere", f.path("link")); err != nil {
				f.t.Fatal(err)
			}
			f.nextRun(false)
			f.remove("../elsewhere")
		}, "is a link to what is gone", func(f *files) { f.remove("link") }, true},
		{"the configured path", func(f *files, unmount func()) {
			unmount()
			f.write("y.yaml", anyPolicy)
			f.remove("shared")
			f.nextRun(false)
			f.move(f.directory, f.directory+".moved")
			if err := os.Mkdir(f.directory, 0o755); err != nil {
				f.t.Fatal(err)
			}
		}, mount, func(f *files) { f.write("empty.yaml", "") }, false},
		{"a configured path that is removed", func(f *files, unmount func()) {
			unmount()
			f.nextRun(false)
			f.move(f.directory, f.directory+".moved")
		}, "does not exist: it may have", func(f *files) {
			f.move(f.directory+".moved", f.directory)
			f.bind("shared")
		}, true},
		{"deleted", func(f *files, _ func()) { f.remove("shared/x.yaml") }, "", nil, false},
		{"deleted with its directory", func(f *files, unmount func()) {
			unmount()
			f.remove("shared")
		}, "", nil, false},
	} {
		f := newFiles(t)
		f.store.options.AwaitPaths = true
		f.store = New(f.store.options)
		unmount := f.bind("shared")
		f.write("shared/x.yaml", anyPolicy)
		f.write("a.yaml", entry("a", "a.test"))
		f.store.Load()
		f.closedBy(test.name+", at first", "")
		test.away(f, unmount)
		for _, run := range []string{"the next", "the one after"} {
			f.nextRun(false)
			f.closedBy(test.name+", "+run, test.closed)
			f.store.Load()
			f.closedBy(test.name+", "+run+", read again", test.closed)
			if awaits, appeared := f.store.AwaitsMissingPaths(); awaits != (test.closed != "") ||
				appeared {
				t.Errorf("%s: awaits %v, appeared %v", test.name, awaits, appeared)
			}
		}
		if test.returns == nil {
			continue
		}
		test.returns(f)
		if _, appeared := f.store.AwaitsMissingPaths(); !appeared {
			t.Errorf("%s: it is still awaited", test.name)
		}
		f.store.Load()
		f.closedBy(test.name+", back", "")
		if got := len(f.denials()) > 0; got {
			t.Errorf("%s: %v", test.name, f.store.Problems())
		}
		has := false
		for _, o := range f.store.Objects("ns") {
			has = has || o.Kind == object.AuthorizationPolicy
		}
		if has != test.policyAfters {
			t.Errorf("%s: the policy is in force: %v", test.name, has)
		}
	}
}

// move renames a path. The new path is removed when the test ends.
func (f *files) move(from, to string) {
	f.t.Helper()
	f.t.Cleanup(func() { _ = os.RemoveAll(to) })
	if err := os.Rename(from, to); err != nil {
		f.t.Fatal(err)
	}
}

// TestFolders_Unreadable removes the permissions of directories while no agent runs. If one of them
// had policies, the next agent serves nothing until it is readable.
func TestFolders_Unreadable(t *testing.T) {
	for _, mode := range []fs.FileMode{0, 0o311, 0o644} {
		f := newFiles(t)
		f.store.options.AwaitPaths = true
		f.store = New(f.store.options)
		f.write("below/x.yaml", anyPolicy)
		f.write("other/a.yaml", entry("a", "a.test"))
		for _, folder := range []string{f.directory, filepath.Dir(f.directory)} {
			if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // of tests
				t.Fatal(err)
			}
		}
		f.store.Load()
		t.Run(mode.String(), func(t *testing.T) {
			withoutRights(t)
			asRoot(t, func() error { return os.Chmod(f.path("other"), mode) })
			f.nextRun(false)
			f.closedBy("without policies", "")
			asRoot(t, func() error { return os.Chmod(f.path("below"), mode) })
			f.nextRun(false)
			f.closedBy("with policies", f.path("below")+":1: cannot be read completely")
			asRoot(t, func() error { return os.Chmod(f.path("below"), 0o755) })
			f.store.Load()
			f.closedBy("readable", "")
		})
	}
}

// TestFolders_Lost starts with a damaged record of directories: any directory without files may
// have had policies.
func TestFolders_Lost(t *testing.T) {
	f := newFiles(t)
	f.write("full/a.yaml", entry("a", "a.test"))
	f.write("b.yaml", entry("b", "b.test"))
	f.nextRun(true)
	f.closedBy("no empty directory", "")
	if err := os.Mkdir(f.path("empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nothing", f.path("link")); err != nil {
		t.Fatal(err)
	}
	f.nextRun(true)
	for range 2 {
		f.closedBy("an empty directory", f.path("empty")+":1: is empty, and may be a mount point")
		f.nextRun(false)
	}
	f.write("empty/empty.yaml", "")
	f.store.Load()
	f.closedBy("a link", f.path("link")+":1: is a link to what is gone")
	f.remove("link")
	f.remove("full/a.yaml")
	f.store.Load()
	f.closedBy("an emptied directory", "")
	if got := maps.Clone(f.store.PolicyFolderInodes()); len(got) > 0 {
		t.Errorf("directories with policies: %v", got)
	}
}

// TestFolders_LostBeforeAPathIsFound: the record of directories with policies is lost while the
// configured path does not exist. Two restarts later, the agent still treats each empty directory
// as a possible mount point once the path exists.
func TestFolders_LostBeforeAPathIsFound(t *testing.T) {
	f := newFiles(t)
	elsewhere := f.directory + ".moved"
	f.move(f.directory, elsewhere)
	f.nextRun(true)
	f.nextRun(false)
	f.closedBy("the path does not exist", "does not exist")
	f.move(elsewhere, f.directory)
	if err := os.Mkdir(f.path("empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.write("broken.yaml", "a: [")
	f.store.Load()
	f.closedBy("the path exists", f.path("empty")+":1: is empty, and may be a mount point")
	if len(f.denials()) == 0 {
		t.Error("the broken file denies nothing")
	}
	f.write("empty/empty.yaml", "")
	f.store.Load()
	f.closedBy("no directory is empty", "")
	if f.store.PolicyLocationsIncomplete() {
		t.Error("the directories count as lost, and all are known")
	}
}
