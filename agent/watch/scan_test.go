package watch

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDirectory_FolderOfLinksIsListedOnce checks that a folder to which 2^18 paths lead through
// links is listed once.
func TestDirectory_FolderOfLinksIsListedOnce(t *testing.T) {
	dir := tempDir(t)
	for i := range 18 {
		mkdir(t, fmt.Sprintf("%s/d/%02d", dir, i))
		link(t, fmt.Sprintf("../%02d", i+1), fmt.Sprintf("%s/d/%02d/a", dir, i))
		link(t, fmt.Sprintf("../%02d", i+1), fmt.Sprintf("%s/d/%02d/b", dir, i))
	}
	mkdir(t, dir+"/d/18")
	write(t, dir+"/d/18/x.yaml", "1")
	begun := time.Now()
	watcher := run(t, testOptions(".yaml"), dir+"/d/...")
	if took := time.Since(begun); took > patience { // listing all 2^18 paths would take longer
		t.Errorf("the first scan took %s", took)
	}
	write(t, dir+"/d/18/x.yaml", "2")
	if diff := cmp.Diff([]string{dir + "/d/18/x.yaml"}, next(t, watcher)); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	quiet(t, watcher)
}

func TestScan_EndsAtItsLimit(t *testing.T) {
	dir := tempDir(t)
	mkdir(t, dir+"/far")
	write(t, dir+"/far/file", "1")
	way := strings.Repeat("far/../", 500) + "far"
	for i := range 200 {
		mkdir(t, fmt.Sprintf("%s/d/%d", dir, i))
		must(t, os.Symlink("../../"+way, fmt.Sprintf("%s/d/%d/x.yaml", dir, i)))
	}
	var logged bytes.Buffer
	tree := newTree(nil, slog.New(slog.NewTextHandler(&logged, nil)))
	roots, err := tree.set([]string{dir + "/d/..."})
	must(t, err)
	for range 2 {
		scanRoot(roots[0], tree.folders)
	}
	if got := strings.Count(logged.String(), "too many files"); got != 1 {
		t.Errorf("%d warnings:\n%s", got, &logged)
	}
}
