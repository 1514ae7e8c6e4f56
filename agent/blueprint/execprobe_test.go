package blueprint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/config"
)

func TestCheckExecProbe(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "check")
	for _, c := range []struct {
		program string
		mode    os.FileMode
		want    string // part of the error; "" = none
	}{
		{program, 0o755, ""}, {"sh", 0o755, ""}, {"no-such-program", 0o755, ""},
		{filepath.Join(dir, "missing"), 0o755, ""},
		{program, 0o777, "outrider.toml:2:1: health.exec: " + program + ": other users may write " +
			"to it and replace what is read from it; chmod go-w " + program + "; or use http, tcp"},
		{program, 0o644, "permission denied"},
	} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(program, c.mode); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "outrider.toml")
		text := fmt.Sprintf("[health]\nexec = [%q]\n", c.program)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := config.Load(config.Options{Path: file})
		if err != nil {
			t.Fatal(err)
		}
		failed := CheckExecProbe(loaded, []string{"another"}, false)
		if (failed == nil) != (c.want == "") ||
			failed != nil && !strings.Contains(failed.Error(), c.want) {
			t.Errorf("%s %o: %v, want %q", c.program, c.mode, failed, c.want)
		}
		if err := CheckExecProbe(loaded, []string{c.program}, false); err != nil {
			t.Errorf("%s %o, unchanged: %v", c.program, c.mode, err)
		}
	}
}
