package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
)

// TestHelp_LeadsToTheFirstAnswer checks that `outrider` without arguments prints the first steps,
// and then all commands in groups.
func TestHelp_LeadsToTheFirstAnswer(t *testing.T) {
	code, out, _ := newMachine(t, nil).outrider()
	if code != api.ExitUsage {
		t.Errorf("exit %d", code)
	}
	at := 0
	for _, want := range []string{"outrider envoy install\n", "/etc/outrider/\n",
		"systemctl enable --now outrider\n", "outrider-mesh(5)", "README.Debian",
		"\nGetting started:\n  envoy ", "\nEvery day:", "\n  status ", "\nLooking into it:",
		"\n  proxy ", "\nIn scripts and units:"} {
		next := strings.Index(out[at:], want)
		if next < 0 {
			t.Fatalf("no %q after byte %d of\n%s", want, at, out)
		}
		at += next
	}
	if strings.Contains(out, "Additional Commands:") {
		t.Errorf("a command is in no group:\n%s", out)
	}
}

// TestFirstSteps_AreEverywhereTheSame checks that the help, the installation of a package, and the
// beginning of README.Debian show the same commands.
func TestFirstSteps_AreEverywhereTheSame(t *testing.T) {
	for _, file := range []string{"README.Debian", "first-steps.sh"} {
		text, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "packaging", file))
		if err != nil {
			t.Fatal(err)
		}
		for command := range strings.Lines(firstSteps) {
			if !strings.Contains(string(text), strings.TrimSpace(command)) {
				t.Errorf("%s has no %q", file, command)
			}
		}
	}
}
