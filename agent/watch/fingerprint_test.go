package watch

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFingerprint_FollowsContent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	sum := func() uint64 {
		t.Helper()
		held, err := Fingerprint(path)
		must(t, err)
		return held
	}
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
	if _, err := Fingerprint(""); err == nil {
		t.Error("no path has a fingerprint")
	}
}

func TestFingerprint_OfUnreadableFileFollowsItsStamp(t *testing.T) {
	path := filepath.Join(searchable(t), "key.pem")
	write(t, path, "one")
	must(t, os.Chmod(path, 0o200))
	sum := func() uint64 {
		t.Helper()
		held, err := Fingerprint(path)
		must(t, err)
		return held
	}
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
	for sum() == one { // the kernel's clock ticks
		if time.Now().After(deadline) {
			t.Fatal("a change of a file that cannot be read is not seen")
		}
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil { // nobody may not write it either
			rootWrites(t, path)
			continue
		}
		_, err = file.WriteString("two")
		must(t, err)
		must(t, file.Close())
	}
}

// searchable is a folder that others may look into.
func searchable(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	for _, folder := range []string{dir, filepath.Dir(dir)} {
		must(t, os.Chmod(folder, 0o755)) //nolint:gosec // of tests
	}
	return dir
}

// nobody drops the file system rights of root until again is called.
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

// rootWrites changes a file from another thread, which has kept its rights.
func rootWrites(t *testing.T, path string) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(path, []byte("two"), 0o200) }()
	must(t, <-done)
}

// With Options.Access a change of the mode counts, one of the times does not.
func TestAccess_ModeCounts(t *testing.T) {
	path := filepath.Join(tempDir(t), "key.pem")
	write(t, path, "one")
	options := testOptions()
	options.Access = true
	watcher := run(t, options, path)
	must(t, os.Chmod(path, 0o640))
	if told := next(t, watcher); len(told) != 1 || told[0] != path {
		t.Errorf("told %q", told)
	}
	now := time.Now()
	must(t, os.Chtimes(path, now, now))
	quiet(t, watcher)
}
