package watch

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

func TestFingerprint_FollowsContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	file := File{Path: path}
	sum := file.Fingerprint
	absent := sum()
	write(t, path, "one")
	one := sum()
	write(t, path, "two")
	two := sum()
	replace(t, path, "one")
	if again := sum(); one == absent || two == one || again != one {
		t.Errorf("absent %x, one %x, two %x, one again %x", absent, one, two, again)
	}
	must(t, os.Chmod(path, 0o640))
	if open := sum(); open == one {
		t.Error("who may read it makes no difference")
	}
	opened := sum()
	now := time.Now()
	must(t, os.Chtimes(path, now, now))
	if same := sum(); same != opened {
		t.Error("its times make a difference")
	}
	link := filepath.Join(filepath.Dir(path), "link")
	must(t, os.Symlink(path, link))
	if through := (&File{Path: link}).Fingerprint(); through != opened {
		t.Errorf("%x, and through a link %x", opened, through)
	}
}

func TestUnread_FreshFileCountsAsChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var now content
	var stamped stamp
	changes := func() bool {
		before := now
		now, stamped = readContent(path, now, stamped, true)
		return now != before
	}
	parts.Eventually(t, patience, "a fresh file counts twice", func() bool {
		write(t, path, time.Now().String())
		changes()
		return changes()
	})
	parts.Eventually(t, patience, "its change time is trusted", func() bool { return !changes() })
	write(t, path, "new")
	if !changes() {
		t.Error("a write is no change")
	}
}

func TestUnread_ReportsUndoneChange(t *testing.T) {
	path := filepath.Join(tempDir(t), "f")
	write(t, path, "old")
	options := testOptions()
	options.ReportWithoutReading = true
	watcher := run(t, options, path)
	replace(t, path, "new")
	replace(t, path, "old")
	if diff := cmp.Diff([]string{path}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestFingerprint_OfUnreadableFileFollowsItsStamp(t *testing.T) {
	path := filepath.Join(searchable(t), "key.pem")
	write(t, path, "one")
	must(t, os.Chmod(path, 0o200))
	file := File{Path: path}
	sum := file.Fingerprint
	again := nobody(t, path)
	defer again()
	if _, err := os.ReadFile(path); err == nil {
		t.Fatal("it can be read")
	}
	one := sum()
	if same := sum(); same != one {
		t.Errorf("%x, and then %x", one, same)
	}
	deadline := time.Now().Add(patience)
	for sum() == one { // until the kernel's clock ticks, a write does not change the change time
		if time.Now().After(deadline) {
			t.Fatal("a change of a file that cannot be read is not seen")
		}
		written, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil { // the test runs as a user who may not write the file
			rootWrites(t, path)
			continue
		}
		_, err = written.WriteString("two")
		must(t, err)
		must(t, written.Close())
	}
}

// searchable returns a folder in which other users may open files.
func searchable(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	for _, folder := range []string{dir, filepath.Dir(dir)} {
		must(t, os.Chmod(folder, 0o755)) //nolint:gosec // of tests
	}
	return dir
}

// nobody makes the calling thread access files as an unprivileged user until again is called, if
// the test runs as root.
func nobody(t *testing.T, path string) (again func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		return func() {}
	}
	runtime.LockOSThread()
	again = func() {
		must(t, unix.Setfsuid(0))
		runtime.UnlockOSThread()
	}
	must(t, unix.Setfsuid(65534))
	if _, err := os.Lstat(path); err != nil {
		again()
		t.Fatalf("as root this test needs a TMPDIR that every user can search: %v", err)
	}
	return again
}

// rootWrites changes a file from another thread, which still accesses files as root.
func rootWrites(t *testing.T, path string) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(path, []byte("two"), 0o200) }()
	must(t, <-done)
}

func TestFingerprint_OfLargeFileFollowsItsStamp(t *testing.T) {
	for size, read := range map[int]bool{mostHashed: true, mostHashed + 1: false} {
		path := filepath.Join(tempDir(t), "ca.pem")
		must(t, os.WriteFile(path, bytes.Repeat([]byte("a"), size), 0o600))
		sum := (&File{Path: path}).Fingerprint
		before := sum()
		if again := sum(); again != before {
			t.Errorf("%d bytes: %x, and then %x", size, before, again)
		}
		// Replace the file by one with equal content and another inode.
		must(t, os.WriteFile(path+".new", bytes.Repeat([]byte("a"), size), 0o600))
		must(t, os.Rename(path+".new", path))
		if same := sum() == before; same != read {
			t.Errorf("%d bytes: the same after an equal one took its place: %t", size, same)
		}
	}
}

func TestFingerprint_OfFolderIgnoresItsEntries(t *testing.T) {
	path := filepath.Join(tempDir(t), "ca.pem")
	must(t, os.Mkdir(path, 0o700))
	sum := (&File{Path: path}).Fingerprint
	before := sum()
	write(t, filepath.Join(path, "inside"), "one")
	if after := sum(); after != before {
		t.Errorf("%x, and with a file in it %x", before, after)
	}
	must(t, os.RemoveAll(path))
	write(t, path, "one")
	if after := sum(); after == before {
		t.Errorf("%x, also as a file", after)
	}
}

// Fingerprint reads the content only if the file may have changed.
func TestFingerprint_ReadsOnlyChanges(t *testing.T) {
	path := filepath.Join(tempDir(t), "cert.pem")
	write(t, path, "one")
	old := time.Now().Add(-trustedAge)
	for info, err := os.Stat(path); stampOf(info).ifTrusted() == (stamp{}); info, err = os.Stat(path) {
		must(t, err)
		if time.Since(old) > patience {
			t.Fatal("its change time cannot be trusted")
		}
	}
	file := File{Path: path}
	one := file.Fingerprint()
	file.sum++ // shows whether the next call returns the stored value without reading the file
	if again := file.Fingerprint(); again != one+1 {
		t.Errorf("%x after %x: read again", again, one)
	}
}
