package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
)

func TestDirectories(t *testing.T) {
	cases := []struct {
		name   string
		path   string // watched path, relative to the test's folder
		before func(t *testing.T, dir string)
		do     func(t *testing.T, dir string)
		want   []string // reported paths, relative to the test's folder; none: no report
	}{
		{name: "a file is written, another created, a third removed", path: "d",
			before: func(t *testing.T, dir string) {
				mkdir(t, dir+"/d")
				write(t, dir+"/d/a.yaml", "1")
				write(t, dir+"/d/b.yaml", "1")
				write(t, dir+"/d/same.yaml", "1")
			}, do: func(t *testing.T, dir string) {
				write(t, dir+"/d/a.yaml", "2")
				remove(t, dir+"/d/b.yaml")
				write(t, dir+"/d/c.yaml", "1")
				write(t, dir+"/d/same.yaml", "1")
			}, want: []string{"d/a.yaml", "d/b.yaml", "d/c.yaml"}},
		{name: "renamed within", path: "d", before: func(t *testing.T, dir string) {
			mkdir(t, dir+"/d")
			write(t, dir+"/d/a.yaml", "1")
		}, do: func(t *testing.T, dir string) {
			rename(t, dir+"/d/a.yaml", dir+"/d/b.yaml")
		}, want: []string{"d/a.yaml", "d/b.yaml"}},
		{name: "other suffixes, dot files and sub-directories do not count", path: "d",
			before: func(t *testing.T, dir string) {
				mkdir(t, dir+"/d/sub.yaml")
			}, do: func(t *testing.T, dir string) {
				write(t, dir+"/d/a.yaml~", "1")
				write(t, dir+"/d/.a.yaml.swp", "1")
				link(t, "nobody@host", dir+"/d/.#a.yaml")
				write(t, dir+"/d/sub.yaml/b.yaml", "1")
				mkdir(t, dir+"/d/more.yaml")
			}},
		{name: "recursive: new sub-directories and their files", path: "d/...",
			before: func(t *testing.T, dir string) {
				mkdir(t, dir+"/d/one")
				write(t, dir+"/d/one/a.yaml", "1")
			}, do: func(t *testing.T, dir string) {
				write(t, dir+"/d/one/a.yaml", "2")
				mkdir(t, dir+"/d/two/three")
				write(t, dir+"/d/two/three/b.yaml", "1")
				write(t, dir+"/d/two/three/b.yaml~", "1")
			}, want: []string{"d/one/a.yaml", "d/two/three/b.yaml"}},
		{name: "recursive: a sub-directory is moved", path: "d/...",
			before: func(t *testing.T, dir string) {
				mkdir(t, dir+"/d/one/deep")
				write(t, dir+"/d/one/deep/a.yaml", "1")
			}, do: func(t *testing.T, dir string) {
				rename(t, dir+"/d/one", dir+"/d/two")
			}, want: []string{"d/one/deep/a.yaml", "d/two/deep/a.yaml"}},
		{name: "recursive: a link leads back to the directory", path: "d/...",
			before: func(t *testing.T, dir string) {
				mkdir(t, dir+"/d/one")
				link(t, "..", dir+"/d/one/back")
				link(t, ".", dir+"/d/self")
			}, do: func(t *testing.T, dir string) {
				write(t, dir+"/d/one/a.yaml", "1")
			}, want: []string{"d/one/a.yaml"}},
		{name: "the directory comes with its files", path: "d", do: func(t *testing.T, dir string) {
			mkdir(t, dir+"/next")
			write(t, dir+"/next/a.yaml", "1")
			rename(t, dir+"/next", dir+"/d")
		}, want: []string{"d", "d/a.yaml"}},
		{name: "the directory goes", path: "d", before: func(t *testing.T, dir string) {
			mkdir(t, dir+"/d")
			write(t, dir+"/d/a.yaml", "1")
		}, do: func(t *testing.T, dir string) {
			remove(t, dir+"/d")
		}, want: []string{"d", "d/a.yaml"}},
		{name: "another directory takes its place", path: "d",
			before: func(t *testing.T, dir string) {
				for _, name := range []string{"d", "next"} {
					mkdir(t, dir+"/"+name)
					write(t, dir+"/"+name+"/same.yaml", "1")
					write(t, dir+"/"+name+"/other.yaml", name)
				}
			}, do: func(t *testing.T, dir string) {
				rename(t, dir+"/d", dir+"/last")
				rename(t, dir+"/next", dir+"/d")
				write(t, dir+"/last/same.yaml", "2")
			}, want: []string{"d/other.yaml"}},
		{name: "the target of a linked file is written", path: "d",
			before: func(t *testing.T, dir string) {
				mkdir(t, dir+"/d")
				mkdir(t, dir+"/store")
				write(t, dir+"/store/v1", "1")
				link(t, "store/v1", dir+"/current")
				link(t, "../current", dir+"/d/a.yaml")
				link(t, "../later", dir+"/d/b.yaml")
			}, do: func(t *testing.T, dir string) {
				write(t, dir+"/store/v1", "2")
				write(t, dir+"/later", "1")
			}, want: []string{"d/a.yaml", "d/b.yaml"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, watcher := together(t, func(dir string) *Watcher {
				if c.before != nil {
					c.before(t, dir)
				}
				return run(t, testOptions(".yaml"), dir+"/"+c.path)
			}, func(dir string) { c.do(t, dir) })
			var want []string
			for _, name := range c.want {
				want = append(want, filepath.Join(dir, name))
			}
			if want != nil {
				if diff := cmp.Diff(want, next(t, watcher)); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
			}
			quiet(t, watcher)
		})
	}
}

func TestDirectory_WriteThroughAnotherLinkIsSeen(t *testing.T) {
	dir := tempDir(t)
	mkdir(t, dir+"/d")
	write(t, dir+"/elsewhere", "old")
	must(t, os.Link(dir+"/elsewhere", dir+"/d/f"))
	watcher := run(t, testOptions(), dir+"/d")
	write(t, dir+"/elsewhere", "changed")
	if diff := cmp.Diff([]string{dir + "/d/f"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// A change causes reads of the changed file only, however many files the directory has.
func TestDirectory_ReadsOnlyChangedFiles(t *testing.T) {
	const files = 5000
	dir := tempDir(t)
	for i := range files {
		write(t, fmt.Sprintf("%s/%04d.yaml", dir, i), fmt.Sprint(i))
	}
	// Wait until the change times of all files are old enough to be trusted.
	long := time.Now().Add(trustedAge)
	for time.Now().Before(long) {
		write(t, dir+"/ignored", "x")
	}
	watcher := run(t, testOptions(".yaml"), dir)
	if got := reads(watcher); got > 2*files {
		t.Errorf("%d files looked at for a start with %d", got, files)
	}
	watcher.mu.Lock()
	late := len(watcher.tree.pending) > 0
	watcher.mu.Unlock()
	// on a slow machine the first scan takes longer than scanWait, and reports the files as changed
	if late {
		next(t, watcher)
	}
	quiet(t, watcher)
	for i := range 3 {
		before := reads(watcher)
		name := fmt.Sprintf("%s/%04d.yaml", dir, 1000*i)
		replace(t, name, "changed")
		if diff := cmp.Diff([]string{name}, next(t, watcher)); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		// Scans read the changed file again until its change time can be trusted.
		if got := reads(watcher) - before; got < 1 || got > 5 {
			t.Errorf("one file of %d changed, %d reads", files, got)
		}
	}
}

func reads(watcher *Watcher) int {
	watcher.mu.Lock()
	defer watcher.mu.Unlock()
	return watcher.tree.reads
}

func TestSet_ForgetsDroppedPaths(t *testing.T) {
	dir := tempDir(t)
	mkdir(t, dir+"/d/sub")
	write(t, dir+"/d/sub/a.yaml", "1")
	mkdir(t, dir+"/real")
	write(t, dir+"/real/file", "1")
	link(t, "real/file", dir+"/linked")
	watcher := run(t, testOptions(), dir+"/d/...", dir+"/linked")
	remove(t, dir+"/d/sub")
	next(t, watcher)
	must(t, watcher.SetPaths([]string{dir + "/other"}))
	write(t, dir+"/real/file", "2")
	quiet(t, watcher)
	watcher.mu.Lock()
	defer watcher.mu.Unlock()
	tree := watcher.tree
	for path := range tree.folders.watched {
		if strings.HasPrefix(path, dir+"/") {
			t.Errorf("%s is still watched", path)
		}
	}
	if len(tree.roots) != 1 || len(tree.pending) != 0 {
		t.Errorf("retained: %d roots, %d pending", len(tree.roots), len(tree.pending))
	}
}

func TestFIFO_DoesNotBlock(t *testing.T) {
	dir := tempDir(t)
	write(t, dir+"/a.yaml", "1")
	watcher := run(t, testOptions(".yaml"), dir)
	remove(t, dir+"/a.yaml")
	must(t, mkfifo(dir+"/a.yaml"))
	if diff := cmp.Diff([]string{dir + "/a.yaml"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	must(t, os.Remove(dir+"/a.yaml"))
	if diff := cmp.Diff([]string{dir + "/a.yaml"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

// TestEvent_WrittenFileIsTheOnlyOneRead counts the files that a scan reads after each event.
func TestEvent_WrittenFileIsTheOnlyOneRead(t *testing.T) {
	directory := tempDir(t)
	a, b, other := filepath.Join(directory, "a"), filepath.Join(directory, "b"), tempDir(t)
	var watcher *Watcher
	fresh := func() { // resets the stamps of all files, so that a full scan would read all of them
		write(t, a, "one")
		write(t, b, "one")
		watcher = New(Options{})
		must(t, watcher.SetPaths([]string{directory}))
		for _, e := range watcher.tree.roots[directory].entries {
			e.stamp = stamp{}
		}
		watcher.tree.reads = 0
	}
	for name, row := range map[string]struct {
		op     fsnotify.Op
		change func()
		reads  int
	}{
		"written": {fsnotify.Write, func() { write(t, a, "two") }, 1},
		"renamed over": {fsnotify.Create, func() {
			write(t, filepath.Join(other, "a"), "two")
			rename(t, filepath.Join(other, "a"), a)
		}, 1},
		"a link now": {fsnotify.Create, func() {
			write(t, filepath.Join(other, "a"), "two")
			remove(t, a)
			link(t, filepath.Join(other, "a"), a)
		}, 2},
		"removed": {fsnotify.Remove, func() { remove(t, a) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(a)
			fresh()
			row.change()
			if !watcher.tree.event(event{a, row.op}) {
				t.Error("the event is not noticed")
			}
			watcher.await(watcher.begin([]*root{watcher.tree.roots[directory]}))
			if !watcher.tree.changed {
				t.Error("the change is not noticed")
			}
			if watcher.tree.reads != row.reads {
				t.Errorf("%d files are read, want %d", watcher.tree.reads, row.reads)
			}
		})
	}
}
