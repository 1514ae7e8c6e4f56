package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// otherEnvoy is a wrapper of Envoy that reports another version. The placeholder INVALID becomes a
// shell pattern; a command line that matches it fails.
const otherEnvoy = `#!/bin/sh
case "$*" in
--version) echo 'envoy  version: abc/9.9.9/Clean/RELEASE/BoringSSL'; exit ;;
INVALID) echo 'unknown field' >&2; exit 1 ;;
esac
exec ENVOY "$@"
`

// TestStatus_NamesTheEnvoyInForce sets [envoy] binary to an Envoy that refuses its bootstrap, and
// then to one that accepts it. The status shows the Envoy that runs.
func TestStatus_NamesTheEnvoyInForce(t *testing.T) {
	r := rig.New(t, rig.Options{Race: true, TOML: "[reload]\nwatch = false\n"})
	write := func(name, invalid string) string {
		path := filepath.Join(r.Dir, name)
		text := strings.NewReplacer("ENVOY", parts.EnvoyPath(t), "INVALID",
			invalid).Replace(otherEnvoy)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad, good := write("bad", "*--mode*validate*"), write("good", "never")
	runs := func(path, version string) {
		t.Helper()
		var status api.Status
		r.RunOutriderJSON(&status, "status")
		if status.Envoy.Path != path || status.Envoy.Version != version {
			t.Errorf("the Envoy in force is %s, version %s; want %s, %s",
				status.Envoy.Path, status.Envoy.Version, path, version)
		}
	}
	use := func(path string) rig.CommandResult {
		r.SetTOML(fmt.Sprintf("[reload]\nwatch = false\n[envoy]\nbinary = %q\n", path))
		return r.RunOutrider("reload")
	}
	r.StartReady()
	runs(parts.EnvoyPath(t), "1.40.0")
	if told := use(bad); told.ExitCode != api.ExitRefused || !strings.Contains(told.Stderr,
		"unknown field") {
		t.Errorf("exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	runs(parts.EnvoyPath(t), "1.40.0")
	if told := use(good); told.ExitCode != api.ExitDone {
		t.Errorf("exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	runs(good, "9.9.9")
}
