package watch

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestSharedInode_IsWatchedByAllPaths watches several names of one file. A write through a name
// that is not watched is reported for all watched names, also after names were added, moved or
// removed.
func TestSharedInode_IsWatchedByAllPaths(t *testing.T) {
	dir := tempDir(t)
	a, b, c, other := dir+"/a/f", dir+"/b/f", dir+"/c/f", dir+"/other"
	hardLink := func(path string) { must(t, os.Link(other, path)) }
	for _, folder := range []string{"a", "b", "c"} {
		mkdir(t, dir+"/"+folder)
	}
	write(t, other, "old")
	hardLink(a)
	hardLink(b)
	write(t, c, "another")
	watcher := run(t, testOptions(), a, b, c)
	changes := func(what string, want ...string) {
		t.Helper()
		var got []string
		for len(got) < len(want) { // a slow machine may report the changes in several batches
			got = append(got, next(t, watcher)...)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: changes (-want +got):\n%s", what, diff)
		}
	}
	write(t, other, "written")
	changes("written", a, b)
	for _, gone := range []string{a, b} {
		rest := slices.DeleteFunc([]string{a, b}, func(path string) bool { return path == gone })
		rename(t, gone, dir+"/away")
		changes("moved away", gone)
		write(t, other, "after "+gone)
		changes("written after a name was moved", rest...)
		remove(t, dir+"/away")
		hardLink(gone)
		changes("back", gone)
		write(t, other, "back "+gone)
		changes("written after it is back", a, b)
	}
	hardLink(dir + "/more")
	// the new file at c has an inode that is watched already, under other names
	rename(t, dir+"/more", c)
	changes("one more name", c)
	write(t, other, "three names")
	changes("three names", a, b, c)
	remove(t, c)
	changes("removed", c)
	must(t, watcher.SetPaths([]string{b}))
	write(t, other, "one name")
	changes("one name", b)
}

// TestSharedFolder_IsWatchedByAllPaths checks that changes in a folder that is also mounted
// elsewhere are reported for both paths.
func TestSharedFolder_IsWatchedByAllPaths(t *testing.T) {
	dir := tempDir(t)
	mkdir(t, dir+"/one")
	mkdir(t, dir+"/two")
	must(t, unix.Mount(dir+"/one", dir+"/two", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir+"/two", unix.MNT_DETACH)) })
	watcher := run(t, testOptions(), dir+"/one", dir+"/two/f")
	for _, text := range []string{"1", "2"} {
		replace(t, dir+"/one/f", text)
		if diff := cmp.Diff([]string{dir + "/one/f", dir + "/two/f"}, next(t, watcher)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	}
}

// TestRemount_IsWatchedAnew replaces a mounted file system by one with the same device and inode
// numbers. The kernel ends its watches then; later changes must be reported nevertheless.
func TestRemount_IsWatchedAnew(t *testing.T) {
	dir := tempDir(t)
	file := dir + "/conf/sub/f"
	mkdir(t, dir+"/conf")
	mount := func(text string) {
		must(t, unix.Mount("none", dir+"/conf", "tmpfs", 0, ""))
		mkdir(t, dir+"/conf/sub")
		write(t, file, text)
	}
	mount("first")
	t.Cleanup(func() { must(t, unix.Unmount(dir+"/conf", unix.MNT_DETACH)) })
	watcher := run(t, testOptions(), file)
	watcher.mu.Lock()
	must(t, unix.Unmount(dir+"/conf", 0))
	mount("second")
	watcher.mu.Unlock()
	for _, text := range []string{"second", "third", "fourth"} {
		if text != "second" {
			write(t, file, text)
		}
		if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
			t.Errorf("%s: changes (-want +got):\n%s", text, diff)
		}
	}
}

// TestMounts_ReportRemountBeforeTheirReader checks that await reports a mount that was replaced
// before await is called, even if the new mount has the same ID.
func TestMounts_ReportRemountBeforeTheirReader(t *testing.T) {
	dir := tempDir(t)
	mount := func() { must(t, unix.Mount("none", dir, "tmpfs", 0, "")) }
	mount()
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	table, err := openMounts()
	must(t, err)
	must(t, unix.Unmount(dir, 0))
	mount()
	reports, done := make(chan []string, 10), make(chan struct{})
	go func() {
		defer close(done)
		table.await(func(points []string) { reports <- points })
	}()
	select {
	case <-reports:
	case <-time.After(10 * time.Second):
		t.Error("no change was reported")
	}
	must(t, table.file.Close())
	<-done
}
