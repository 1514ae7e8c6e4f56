package watch

import (
	"bytes"
	"crypto/sha256"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

func TestDebouncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		debounce, maxDelay := 100*time.Millisecond, time.Second
		var delays atomic.Pointer[Delays]
		delays.Store(&Delays{debounce, maxDelay})
		burst := debouncer{delays: &delays}
		if wait := burst.touch(time.Now()); wait != debounce {
			t.Errorf("first change: waits %v", wait)
		}
		time.Sleep(940 * time.Millisecond)
		if wait := burst.touch(time.Now()); wait != 60*time.Millisecond {
			t.Errorf("940 ms after the first: waits %v, not the rest of the longest delay", wait)
		}
		time.Sleep(time.Second)
		if wait := burst.touch(time.Now()); wait != 0 {
			t.Errorf("after the longest delay: waits %v", wait)
		}
		burst.reset()
		debounce = 10 * time.Millisecond // changed between two bursts, as by a reload
		delays.Store(&Delays{debounce, maxDelay})
		if wait := burst.touch(time.Now()); wait != debounce {
			t.Errorf("next burst: waits %v", wait)
		}
		delays.Store(&Delays{debounce, time.Millisecond})
		if wait := burst.touch(time.Now()); wait != time.Millisecond {
			t.Errorf("debounce above the longest delay: waits %v", wait)
		}
	})
}

func TestMaxDelay_EndsBurst(t *testing.T) {
	dir := tempDir(t)
	options := Options{Delays: Delays{time.Hour, 300 * time.Millisecond}}
	watcher := run(t, options, dir+"/f")
	writing := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-writing:
				return
			default:
				if err := os.WriteFile(dir+"/f", []byte(time.Now().String()), 0o600); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	next(t, watcher)
	close(writing)
	<-done
}

func TestChanges_MergeUntilReceived(t *testing.T) {
	dir := tempDir(t)
	write(t, dir+"/undone", "old")
	options := Options{Delays: Delays{time.Millisecond, time.Second}}
	watcher := run(t, options, dir+"/a", dir+"/b", dir+"/undone")
	steps := []struct{ path, text string }{
		{dir + "/a", "1"}, {dir + "/undone", "new"}, {dir + "/b", "1"}, {dir + "/undone", "old"},
	}
	for _, step := range steps {
		replace(t, step.path, step.text)
		seen(t, watcher, step.path, step.text)
	}
	if diff := cmp.Diff([]string{dir + "/a", dir + "/b"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	quiet(t, watcher)
}

// seen waits until the watcher has read a file after text was written to it.
func seen(t *testing.T, watcher *Watcher, path, text string) {
	t.Helper()
	want := content{kind: file, sum: sha256.Sum256([]byte(text))}
	parts.Eventually(t, patience, "the watcher looks at "+path, func() bool {
		watcher.mu.Lock()
		defer watcher.mu.Unlock()
		return watcher.tree.roots[path].entries[path].current == want
	})
}

func TestRun_ReportsChangesSinceSet(t *testing.T) {
	dir := tempDir(t)
	write(t, dir+"/f", "old")
	watcher := New(testOptions())
	must(t, watcher.SetPaths([]string{dir + "/f"}))
	write(t, dir+"/f", "new")
	start(t, watcher, dir+"/f")
	if diff := cmp.Diff([]string{dir + "/f"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestSet_KeepsPendingChanges(t *testing.T) {
	dir := tempDir(t)
	write(t, dir+"/a", "old")
	write(t, dir+"/c", "old")
	options := Options{Delays: Delays{time.Millisecond, time.Second}}
	watcher := run(t, options, dir+"/a", dir+"/b")
	replace(t, dir+"/a", "new")
	seen(t, watcher, dir+"/a", "new")
	must(t, watcher.SetPaths([]string{dir + "/a", dir + "/c"}))
	if diff := cmp.Diff([]string{dir + "/a"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	write(t, dir+"/b", "nobody asks")
	replace(t, dir+"/c", "new")
	if diff := cmp.Diff([]string{dir + "/c"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if err := watcher.SetPaths([]string{""}); err == nil {
		t.Error("an empty path was accepted")
	}
}

// The kernel's event queue holds max_queued_events events. If more events occur while nobody reads
// the queue, they are lost. The watcher then scans all paths, and reports all changes.
func TestOverflow_ScansEverything(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	must(t, err)
	queue, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(t, err)
	dir := tempDir(t)
	write(t, dir+"/f", "old")
	watcher := New(testOptions())
	start(t, watcher, dir+"/f", dir+"/later")
	quiet(t, watcher)
	watcher.mu.Lock()
	// more events than the queue holds, including those that were read before the lock was taken
	for range queue + 4096 {
		must(t, os.Symlink("x", dir+"/ignored"))
		must(t, os.Remove(dir+"/ignored"))
	}
	write(t, dir+"/f", "new")
	write(t, dir+"/later", "new")
	watcher.mu.Unlock()
	if diff := cmp.Diff([]string{dir + "/f", dir + "/later"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
}

func TestWithoutInotify_FilesArePolled(t *testing.T) {
	for _, limit := range []string{"instances", "watches"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			mkdir(t, dir+"/d/sub")
			write(t, dir+"/d/sub/f.yaml", "old")
			var log bytes.Buffer
			watcher := New(Options{
				Delays: Delays{time.Millisecond, time.Second},
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			watcher.interval = testInterval
			if limit == "instances" {
				watcher.open = func() (*fsnotify.Watcher, error) { return nil, unix.EMFILE }
			} else {
				watcher.tree.folders.add = func(string) error { return unix.ENOSPC }
			}
			start(t, watcher, dir+"/f", dir+"/d/...")
			for _, name := range []string{dir + "/f", dir + "/d/sub/f.yaml"} {
				replace(t, name, "new")
				if diff := cmp.Diff([]string{name}, next(t, watcher)); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
			}
			watcher.mu.Lock()
			defer watcher.mu.Unlock()
			if n := strings.Count(log.String(), "level=WARN"); n != 1 {
				t.Errorf("%d warnings, want 1:\n%s", n, log.String())
			}
		})
	}
}
