package watch

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A test makes all changes of one step within testDebounce, which is possible on a slow machine,
// too (see together).
const (
	testDebounce = 120 * time.Millisecond
	testInterval = 50 * time.Millisecond // interval of polls
	patience     = 10 * time.Second
	silence      = 2 * testDebounce // time in which no further change may be reported
)

func testOptions(suffixes ...string) Options {
	return Options{Delays: Delays{testDebounce, patience}, Suffixes: suffixes}
}

// run starts a Watcher of paths, waits until it watches them, and stops it at the end of the test.
func run(t *testing.T, options Options, paths ...string) *Watcher {
	t.Helper()
	watcher := New(options)
	watcher.interval = testInterval
	start(t, watcher, paths...)
	return watcher
}

// start does the same as run for an existing Watcher.
func start(t *testing.T, watcher *Watcher, paths ...string) {
	t.Helper()
	launch(t, watcher, paths...)
	parts.Eventually(t, patience, "the first scan", func() bool {
		watcher.mu.Lock()
		defer watcher.mu.Unlock()
		return !slices.ContainsFunc(slices.Collect(maps.Values(watcher.tree.roots)),
			func(r *root) bool { return r.stale || r.job != nil })
	})
}

// launch does the same as start, but does not wait for the first scan.
func launch(t *testing.T, watcher *Watcher, paths ...string) {
	t.Helper()
	if err := watcher.SetPaths(paths); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- watcher.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	<-watcher.Ready()
}

// together repeats the steps of one change until they take less than testDebounce, because slower
// steps are correctly reported as several changes. Each attempt has its own folder and watcher. The
// results are those of the last attempt.
func together(
	t *testing.T, prepare func(dir string) *Watcher, steps func(dir string),
) (dir string, watcher *Watcher) {
	t.Helper()
	for range 20 {
		dir = tempDir(t)
		watcher = prepare(dir)
		began := time.Now()
		steps(dir)
		if took := time.Since(began); took < testDebounce {
			return dir, watcher
		}
	}
	t.Fatalf("the steps never took less than %v", testDebounce)
	return "", nil
}

// next waits for the next batch of changes and returns it.
func next(t *testing.T, watcher *Watcher) []string {
	t.Helper()
	select {
	case names := <-watcher.Changes():
		return names
	case <-time.After(patience):
		t.Fatal("no change was reported")
		return nil
	}
}

// quiet fails the test if another change is reported.
func quiet(t *testing.T, watcher *Watcher) {
	t.Helper()
	select {
	case names := <-watcher.Changes():
		t.Errorf("one more change: %q", names)
	case <-time.After(silence):
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// replace replaces a file atomically.
func replace(t *testing.T, path, text string) {
	t.Helper()
	temporary := filepath.Join(filepath.Dir(path), ".replace")
	write(t, temporary, text)
	rename(t, temporary, path)
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	must(t, os.MkdirAll(path, 0o700))
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.Rename(from, to))
}

func remove(t *testing.T, path string) {
	t.Helper()
	must(t, os.RemoveAll(path))
}

func link(t *testing.T, target, path string) {
	t.Helper()
	must(t, os.Symlink(target, path))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tempDir returns a folder whose path contains no symbolic links.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return dir
}
