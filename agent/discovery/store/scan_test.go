package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
)

// linkFarm creates folders each of which has two links to the next one, so that 2^folders paths
// lead to a file in the last one.
func linkFarm(f *files, folders int) {
	f.t.Helper()
	for i := range folders {
		f.write(fmt.Sprintf("%02d/ignored.txt", i), "")
		for _, link := range []string{"a", "b"} {
			err := os.Symlink(fmt.Sprintf("../%02d", i+1), f.path(fmt.Sprintf("%02d/%s", i, link)))
			if err != nil {
				f.t.Fatal(err)
			}
		}
	}
	f.write(fmt.Sprintf("%02d/x.yaml", folders), entry("x", "x.test"))
}

func TestScan_FolderOfLinksIsReadOnce(t *testing.T) {
	f := newFiles(t)
	linkFarm(f, 18)
	begun := time.Now()
	if diff := cmp.Diff([]string{"x: - → x.test"}, f.changes(f.store.Load())); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	// reading 2^18 paths would take longer
	if len(f.store.Problems()) > 0 || time.Since(begun) > 20*time.Second {
		t.Errorf("%s, problems %v", time.Since(begun), f.store.Problems())
	}
	if known := f.store.files[f.path("18/x.yaml")]; known == nil {
		t.Error("the file has not the path without links")
	}
}

// TestScan_LinkedFoldersAreRead creates links to folders outside and inside the configured
// directory, and from a folder to its parent. Each file is read exactly once.
func TestScan_LinkedFoldersAreRead(t *testing.T) {
	f, outside := newFiles(t), newFiles(t)
	outside.write("one/a.yaml", entry("a", "a.test"))
	f.write("z/b.yaml", entry("b", "b.test"))
	for link, target := range map[string]string{"first": outside.path("one"),
		"second": outside.path("."), "again": "z", "z/back": ".."} {
		if err := os.Symlink(target, f.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	f.store.Load()
	if len(f.store.Problems()) > 0 {
		t.Errorf("problems %v", f.store.Problems())
	}
	for _, path := range []string{"first/a.yaml", "z/b.yaml"} {
		if f.store.files[f.path(path)] == nil {
			t.Errorf("%s is not read", path)
		}
	}
	if len(f.store.files) != 2 {
		t.Errorf("%d files", len(f.store.files))
	}
}

// TestScan_TooManyEntries adds more than maxEntries files to a directory. Objects that were read
// before stay in force. The next agent must assume that unread files contain policies.
func TestScan_TooManyEntries(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", entry("a", "a.test"))
	f.store.Load()
	many := f.path("many")
	if err := os.Mkdir(many, 0o755); err != nil {
		t.Fatal(err)
	}
	f.write("file", "")
	for i := range maxEntries {
		if err := os.Link(f.path("file"), filepath.Join(many, fmt.Sprint(i))); err != nil {
			// the file system's limit of links to one file is reached: continue with a new file
			f.remove("file")
			f.write("file", "")
			if err := os.Link(f.path("file"), filepath.Join(many, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, unlisted := f.store.PoliciesIncompleteProblem(); unlisted {
		t.Error("unlisted at first")
	}
	if changes := f.store.Load(); len(changes) > 0 {
		t.Errorf("changes %v", f.changes(changes))
	}
	problems := f.store.Problems()
	if len(problems) != 1 || problems[0].Severity != condition.Error ||
		problems[0].File != f.directory || !strings.Contains(problems[0].Message, "100000") {
		t.Errorf("problems %v", problems)
	}
	if _, unlisted := f.store.PoliciesIncompleteProblem(); unlisted {
		t.Error("unlisted although its files were known")
	}
	next := New(f.store.options)
	next.Load()
	if p, unlisted := next.PoliciesIncompleteProblem(); !unlisted || p != problems[0] {
		t.Errorf("unlisted: %v, %v", unlisted, p)
	}
	f.remove("many")
	f.store.Load()
	if len(f.store.Problems()) > 0 || len(f.store.Objects("default")) != 1 {
		t.Errorf("problems %v, objects %v", f.store.Problems(), f.store.Objects("default"))
	}
}

func TestIsHidden(t *testing.T) {
	for err, want := range map[error]bool{nil: false, syscall.ENOENT: false, syscall.ENOTDIR: false,
		syscall.ELOOP: false, syscall.EACCES: true, syscall.ENAMETOOLONG: true, syscall.ESTALE: true,
		syscall.EIO: true, syscall.ENOTCONN: true, syscall.ETIMEDOUT: true} {
		if got := isHidden(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
