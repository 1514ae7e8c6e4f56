package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun_NamesTheCureOfAnExistingFolder checks that `make run` and `make run-fleet` neither use
// nor remove a directory that they have not created, and that their error says what to do.
func TestRun_NamesTheCureOfAnExistingFolder(t *testing.T) {
	for _, script := range []string{"run", "run-fleet"} {
		t.Run(script, func(t *testing.T) { namesTheCure(t, script) })
	}
}

func namesTheCure(t *testing.T, script string) {
	t.Helper()
	folder := t.TempDir()
	kept := filepath.Join(folder, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("../" + script)
	command.Env = append(os.Environ(), "OUTRIDER_RUN_DIR="+folder)
	out, err := command.CombinedOutput()
	want := script + ": " + folder + " exists already: name another folder in OUTRIDER_RUN_DIR, or " +
		"remove this one if an earlier run left it\n"
	if err == nil || string(out) != want {
		t.Errorf("%v: %s", err, strings.TrimSpace(string(out)))
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}
