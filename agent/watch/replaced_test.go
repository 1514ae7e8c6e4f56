package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A watched folder is replaced or removed. Before the watcher receives this event, it examines
// another path that leads through the folder. It reports the changes nevertheless.
func TestReplacedFolder_IsMetOnAnotherPathFirst(t *testing.T) {
	for _, test := range []struct {
		name string
		put  bool // another folder takes the place of the watched one immediately
		// what makes the watcher examine the other path: a call of SetPaths, or the event of a link
		via string
	}{
		{"put, Set", true, "set"},
		{"removed, Set", false, "set"},
		{"put, event", true, "event"},
		{"removed, event", false, "event"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := tempDir(t)
			folder, file, link1 := dir+"/a/b", dir+"/a/b/f", dir+"/links/one"
			mkdir(t, folder)
			mkdir(t, dir+"/links")
			mkdir(t, dir+"/next")
			write(t, file, "old")
			write(t, dir+"/next/f", "new")
			link(t, "nowhere", link1)
			watcher := run(t, testOptions(), file, link1)
			quiet(t, watcher)

			watcher.mu.Lock()
			if test.via == "event" {
				link(t, "../a/b/other", dir+"/links/two")
				rename(t, dir+"/links/two", link1)
			}
			// the watcher receives one event, and then blocks because the test holds its lock
			for i := range 5 {
				write(t, fmt.Sprintf("%s/%d", folder, i), "")
			}
			rename(t, folder, dir+"/away")
			if test.put {
				rename(t, dir+"/next", folder)
			}
			paths := []string{file, link1}
			if test.via == "set" {
				paths = append(paths, folder+"/other")
				roots, err := watcher.tree.set(paths)
				must(t, err)
				watcher.begin(roots)
			}
			watcher.mu.Unlock()
			must(t, watcher.SetPaths(paths))

			if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			mkdir(t, folder)
			write(t, file, "newer")
			if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
				t.Errorf("changes of the write after it (-want +got):\n%s", diff)
			}
			quiet(t, watcher)
		})
	}
}

// After a folder has become unreadable, a watched file in it and a file that is created in a folder
// below it are still watched.
func TestFolder_MayBecomeUnreadable(t *testing.T) {
	dir := searchable(t)
	folder, file := dir+"/conf", dir+"/conf/f"
	mkdir(t, folder+"/sub")
	must(t, os.Chmod(folder+"/sub", 0o755)) //nolint:gosec // of tests
	write(t, folder+"/sub/neighbour", "")
	write(t, file, "old")
	must(t, os.Chmod(file, 0o644)) //nolint:gosec // of tests
	watcher := run(t, testOptions(), file)
	quiet(t, watcher)
	must(t, os.Chmod(folder, 0o311))                       //nolint:gosec // of tests
	t.Cleanup(func() { must(t, os.Chmod(folder, 0o700)) }) //nolint:gosec // of tests
	again := nobody(t, file)
	watcher.mu.Lock()
	roots, err := watcher.tree.set([]string{file, folder + "/sub/g"})
	for _, r := range roots {
		if r.due() { // scan in this thread, which has no right to list the folder
			j := r.begin()
			watcher.tree.apply(j, j.run(watcher.tree.folders, false))
		}
	}
	watcher.mu.Unlock()
	again()
	must(t, err)
	for _, name := range []string{"f", "sub/g"} {
		write(t, filepath.Join(folder, name), "new")
		if diff := cmp.Diff([]string{filepath.Join(folder, name)}, next(t, watcher)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
	}
}
