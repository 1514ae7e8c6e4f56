package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestBusyParent_CausesNoScan checks that changes in a folder above the configuration cause no
// scan, but that the replacement of the configuration's folder is reported.
func TestBusyParent_CausesNoScan(t *testing.T) {
	busy := tempDir(t)
	file, directory := busy+"/config/outrider.toml", busy+"/config/mesh.d"
	mkdir(t, directory)
	write(t, file, "old")
	write(t, directory+"/a.toml", "old")
	watcher := run(t, testOptions(), file, directory, busy+"/config/missing/file")
	quiet(t, watcher)
	unconcerned := func() {
		t.Helper()
		watcher.mu.Lock()
		defer watcher.mu.Unlock()
		for _, op := range []fsnotify.Op{fsnotify.Create, fsnotify.Write, fsnotify.Remove} {
			if watcher.tree.event(event{busy + "/neighbour", op}) {
				t.Errorf("%v of a neighbour causes a scan", op)
			}
		}
	}
	unconcerned()

	mkdir(t, busy+"/other/mesh.d")
	write(t, busy+"/other/outrider.toml", "other")
	write(t, busy+"/other/mesh.d/a.toml", "other")
	// Exchange the folders atomically, so that all changes are reported in one batch even on a slow
	// machine.
	const here = unix.AT_FDCWD
	must(t, unix.Renameat2(here, busy+"/other", here, busy+"/config", unix.RENAME_EXCHANGE))
	if diff := cmp.Diff([]string{directory + "/a.toml", file}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	write(t, busy+"/other/outrider.toml", "nobody's")
	write(t, file, "newer")
	if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	unconcerned()
}

// A replaced folder is noticed even if a process still has it open. inotify would report its
// removal only after the last process has closed it.
func TestReplacedFolder_IsSeenWhileInUse(t *testing.T) {
	for _, test := range []struct {
		name            string
		missing, slowly bool
	}{
		{"at once", false, false},
		{"after a while", false, true},
		{"at once, missing file", true, false},
		{"after a while, missing file", true, true},
	} {
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
						t.Errorf("removed: changes (-want +got):\n%s", diff)
					}
				}
				mkdir(t, below)
				for _, text := range []string{"new", "newer"} {
					write(t, file, fmt.Sprint(text, round))
					if diff := cmp.Diff([]string{file}, next(t, watcher)); diff != "" {
						t.Errorf("%s: changes (-want +got):\n%s", text, diff)
					}
				}
			}
		})
	}
}
