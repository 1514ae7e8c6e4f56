package rig

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// Programs is the directory of the built programs: outriderd, outrider, outrider-keeper,
// outrider-bootstrap, outrider-capture, outrider-probe, backend and load.
type Programs struct{ Dir string }

// Path returns the path of a program.
func (p Programs) Path(name string) string { return filepath.Join(p.Dir, name) }

var built struct {
	sync.Mutex
	dirs map[bool]string
}

// Build builds the programs once per test process, in a directory that RemovePrograms removes. With
// race, outriderd is built with the race detector, and a data race makes it exit with status 66,
// which no test expects. The other programs are always built without the race detector, which would
// slow down the keeper, the parent of the Envoys, and falsify the measurements of the load
// generator.
func Build(t testing.TB, race bool) Programs {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if dir := built.dirs[race]; dir != "" {
		return Programs{dir}
	}
	dir, err := os.MkdirTemp("/tmp", "orbin")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := parts.RunBuildScript([]string{"CGO_ENABLED=0"}, "programs", "./cmd/outriderd",
		"./cmd/outrider", "./cmd/outrider-keeper", "./cmd/outrider-bootstrap",
		"./cmd/outrider-probe", "./cmd/outrider-capture", "./scripts/backend/cmd/backend",
		"./scripts/load/cmd/load")
	folders := []string{programs}
	if err == nil && race {
		programs, err = parts.RunBuildScript([]string{"CGO_ENABLED=1"}, "race", "-race",
			"./cmd/outriderd")
		folders = append(folders, programs)
	}
	for _, folder := range folders {
		if err == nil {
			err = exec.Command("cp", "-r", folder+"/.", dir).Run()
		}
	}
	if err == nil {
		err = os.Chmod(dir, 0o755) // the user of Envoy must be able to execute the keeper
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		t.Fatal(err)
	}
	if built.dirs == nil {
		built.dirs = map[bool]string{}
	}
	built.dirs[race] = dir
	return Programs{dir}
}

// RemovePrograms removes the directories that Build has created. It must be called at the end of
// TestMain.
func RemovePrograms() {
	built.Lock()
	defer built.Unlock()
	for _, dir := range built.dirs {
		_ = os.RemoveAll(dir)
	}
	built.dirs = nil
}
