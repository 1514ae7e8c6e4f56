package watch

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// TestPoll_OnlyWhereInotifyIsSilent checks that paths on a local file system are not polled, so
// that an idle watcher uses no CPU time.
func TestPoll_OnlyWhereInotifyIsSilent(t *testing.T) {
	dir := tempDir(t)
	mkdir(t, dir+"/d/sub")
	write(t, dir+"/f", "1")
	link(t, "nowhere", dir+"/link")
	for path, want := range map[string]bool{
		dir + "/f": false, dir + "/d/...": false, dir + "/missing/f": false, dir + "/link": false,
		"/proc/self/limits": true,
	} {
		watcher := run(t, testOptions(), path)
		watcher.mu.Lock()
		if got := watcher.tree.polled(false); got != want {
			t.Errorf("%s is polled: %v", path, got)
		}
		watcher.mu.Unlock()
	}
}

// TestHangingFileSystem_DelaysItsPathsOnly checks that changes of a path are reported while the
// file system of another watched path does not respond.
func TestHangingFileSystem_DelaysItsPathsOnly(t *testing.T) {
	dir, hanging := tempDir(t), tempDir(t)
	write(t, hanging+"/f", "below the mount")
	release := parts.HangingMount(t, hanging)
	watcher := New(testOptions())
	begun := time.Now()
	must(t, watcher.SetPaths([]string{dir + "/f", hanging + "/f"}))
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("Set took %v", took)
	}
	launch(t, watcher, dir+"/f", hanging+"/f")
	for _, text := range []string{"1", "2"} {
		write(t, dir+"/f", text)
		if diff := cmp.Diff([]string{dir + "/f"}, next(t, watcher)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	}
	must(t, watcher.SetPaths([]string{dir + "/f", hanging + "/f", hanging + "/g"}))
	release()
	for seen := map[string]bool{}; !seen[hanging+"/f"]; {
		for _, path := range next(t, watcher) {
			seen[path] = true
		}
	}
}

// TestMount_OnTheWayIsNoticed mounts a file system over the folder of a watched file, and unmounts
// it. Both are reported as changes of the file.
func TestMount_OnTheWayIsNoticed(t *testing.T) {
	dir := tempDir(t)
	file := dir + "/conf/sub/f"
	mkdir(t, dir+"/conf/sub")
	write(t, file, "below")
	watcher := run(t, testOptions(), file)
	quiet(t, watcher)
	must(t, unix.Mount("none", dir+"/conf", "tmpfs", 0, ""))
	mounted := true
	t.Cleanup(func() {
		if mounted {
			must(t, unix.Unmount(dir+"/conf", unix.MNT_DETACH))
		}
	})
	changes := func(what string) {
		t.Helper()
		if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
			t.Errorf("%s: changes (-want +got):\n%s", what, diff)
		}
	}
	changes("mounted")
	mkdir(t, dir+"/conf/sub")
	write(t, file, "above")
	changes("written")
	must(t, unix.Unmount(dir+"/conf", unix.MNT_DETACH))
	mounted = false
	changes("unmounted")
	write(t, file, "below again")
	changes("written below")
}

// TestMount_OfAFileIsFollowed bind-mounts a file and watches the mount. Writes to the original file
// are reported.
func TestMount_OfAFileIsFollowed(t *testing.T) {
	dir := tempDir(t)
	write(t, dir+"/source", "1")
	write(t, dir+"/target", "")
	must(t, unix.Mount(dir+"/source", dir+"/target", "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(dir+"/target", unix.MNT_DETACH)) })
	watcher := run(t, testOptions(), dir+"/target")
	write(t, dir+"/source", "2")
	if diff := cmp.Diff([]string{dir + "/target"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// TestUnread_ReportsAccessOfFolders checks that, with ReportWithoutReading, a change of the mode of
// a folder above a file is reported, because it may change who can read the file.
func TestUnread_ReportsAccessOfFolders(t *testing.T) {
	dir := tempDir(t)
	mkdir(t, dir+"/a/b")
	write(t, dir+"/a/b/f", "1")
	options := testOptions()
	options.ReportWithoutReading = true
	watcher := run(t, options, dir+"/a/b/f")
	for folder, mode := range map[string]os.FileMode{dir + "/a": 0o711, dir + "/a/b": 0o750} {
		must(t, os.Chmod(folder, mode))
		if diff := cmp.Diff([]string{dir + "/a/b/f"}, next(t, watcher)); diff != "" {
			t.Errorf("%s: changes (-want +got):\n%s", folder, diff)
		}
	}
	quiet(t, watcher)
}
