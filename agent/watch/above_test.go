package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// counted counts the events of entries of a folder that reach the watcher.
func counted(watcher *Watcher, folder string) *atomic.Int64 {
	var count atomic.Int64
	watcher.open = func() (*kernel, error) {
		source, err := openKernel()
		if err != nil {
			return nil, err
		}
		from, to, closed, end := source.events, make(chan kernelEvent), make(chan struct{}), source.close
		source.events, source.close = to, func() { close(closed); end() }
		go func() {
			defer close(to)
			for event := range from {
				if event.folder == folder {
					count.Add(1)
				}
				select {
				case to <- event:
				case <-closed:
					return
				}
			}
		}()
		return source, nil
	}
	return &count
}

// A configuration below a folder that everybody writes to sleeps as well as any other; that its folder is replaced is seen all the same.
func TestWhatComesAndGoesAboveWakesNobody(t *testing.T) {
	busy := tempDir(t)
	file, directory := busy+"/config/outrider.toml", busy+"/config/mesh.d"
	mkdir(t, directory)
	write(t, file, "old")
	write(t, directory+"/a.toml", "old")
	watcher := New(testOptions())
	events := counted(watcher, busy)
	start(t, watcher, file, directory, busy+"/config/missing/file")
	quiet(t, watcher)
	for i := range 100 {
		write(t, fmt.Sprintf("%s/%d", busy, i), "x")
		remove(t, fmt.Sprintf("%s/%d", busy, i))
	}
	write(t, file, "new")
	if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if n := events.Load(); n != 0 {
		t.Errorf("woken %d times", n)
	}

	mkdir(t, busy+"/other/mesh.d")
	write(t, busy+"/other/outrider.toml", "other")
	write(t, busy+"/other/mesh.d/a.toml", "other")
	// In one step: it is one batch however slow the machine is.
	must(t, unix.Renameat2(unix.AT_FDCWD, busy+"/other", unix.AT_FDCWD, busy+"/config", unix.RENAME_EXCHANGE))
	if diff := cmp.Diff([]string{directory + "/a.toml", file}, next(t, watcher)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	for i := range 100 {
		write(t, fmt.Sprintf("%s/%d", busy, i), "x")
	}
	write(t, busy+"/other/outrider.toml", "nobody's")
	write(t, file, "newer")
	if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if n := events.Load(); n > 4 { // what was replaced, and what may be told twice of it
		t.Errorf("woken %d times", n)
	}
}

// A folder that somebody stands in says that it was removed only when he leaves.
func TestFolderThatIsInUseIsReplaced(t *testing.T) {
	for _, test := range []struct {
		name            string
		missing, slowly bool
	}{{"at once", false, false}, {"after a while", false, true}, {"at once, of a file that was not there", true, false}, {"after a while, of a file that was not there", true, true}} {
		t.Run(test.name, func(t *testing.T) {
			top := tempDir(t)
			below := filepath.Join(top, "a", "b")
			file := filepath.Join(below, "f.toml")
			mkdir(t, below)
			write(t, below+"/other", "nobody's")
			if !test.missing {
				write(t, file, "old")
			}
			watcher := run(t, testOptions(), file)
			quiet(t, watcher)
			for round := range 3 {
				for _, folder := range []string{below, filepath.Dir(below)} {
					inside, err := os.Open(folder)
					must(t, err)
					t.Cleanup(func() { _ = inside.Close() })
				}
				remove(t, filepath.Dir(below))
				switch {
				case test.slowly && test.missing && round == 0:
					quiet(t, watcher)
				case test.slowly:
					if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
						t.Errorf("removed: told (-want +got):\n%s", diff)
					}
				}
				mkdir(t, below)
				for _, text := range []string{"new", "newer"} {
					write(t, file, fmt.Sprint(text, round))
					if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
						t.Errorf("%s: told (-want +got):\n%s", text, diff)
					}
				}
			}
		})
	}
}
