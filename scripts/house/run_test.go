package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun_NamesTheCureOfAnExistingFolder checks that `make run` neither uses nor removes a folder
// of somebody's.
func TestRun_NamesTheCureOfAnExistingFolder(t *testing.T) {
	folder := t.TempDir()
	kept := filepath.Join(folder, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("../run")
	command.Env = append(os.Environ(), "OUTRIDER_RUN_DIR="+folder)
	out, err := command.CombinedOutput()
	want := "run: " + folder + " exists already: name another folder in OUTRIDER_RUN_DIR, or " +
		"remove this one if an earlier run left it\n"
	if err == nil || string(out) != want {
		t.Errorf("%v: %s", err, strings.TrimSpace(string(out)))
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}
