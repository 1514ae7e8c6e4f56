package systemtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
)

// otherEnvoys is the directory in the machine with Envoys that the test has made.
const otherEnvoys = "/opt/envoys"

// wrapper is a script that runs the real Envoy, but reports another VERSION, and runs ANSWER for
// command lines that match QUESTION.
const wrapper = `#!/bin/sh
case "$*" in
--version) echo 'envoy  version: abc/VERSION/Clean/RELEASE/BoringSSL'; exit ;;
QUESTION) ANSWER; exit ;;
esac
exec /opt/envoy/envoy "$@"
`

// TestEnvoyUse_ChangesTheRunningEnvoy installs Envoys from files, and switches between them under
// load: by hot restart or side by side, but not to an Envoy that does not work.
func TestEnvoyUse_ChangesTheRunningEnvoy(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(parts.EnvoyPath(t))
	if err != nil {
		t.Fatal(err)
	}
	other := func(version, question, answer string) []byte {
		fill := strings.NewReplacer("VERSION", version, "QUESTION", question, "ANSWER", answer)
		return []byte(fill.Replace(wrapper))
	}
	for name, content := range map[string][]byte{
		"next":       bytes.ReplaceAll(program, []byte("1.40.0"), []byte("1.40.9")),
		"sideways":   other("1.41.0", "--hot-restart-version", "echo 11.999"),
		"broken":     other("1.42.0", "*--mode*validate*", "echo 'unknown field' >&2; false"),
		"not-listed": other("1.43.0", "never", "false"),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := NewHost(t, folder+":"+otherEnvoys)
	h.RunScript("rm /usr/local/bin/envoy")
	does := func(want, script string) {
		t.Helper()
		if out := h.RunScript(script); !strings.Contains(out, want) {
			t.Errorf("%s: %s", script, out)
		}
	}
	refuses := func(want, script string) {
		t.Helper()
		out, err := h.Run(t.Context(), "sh", "-c", script)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	refuses(`run "outrider envoy install" as root`, "outriderd")
	// The file is recognised as Envoy 1.40.0. It is selected, because no Envoy is selected yet.
	does("installed Envoy 1.40.0 as /usr/lib/outrider/envoy-1.40.0/envoy\n",
		"outrider envoy install --file /opt/envoy/envoy")
	refuses("no known Envoy for this architecture", "outrider envoy install --file "+otherEnvoys+
		"/not-listed")
	for _, name := range []string{"next", "sideways", "broken"} {
		does("installed", "f="+otherEnvoys+"/"+name+"; outrider envoy install --file $f "+
			"--sha256 $(sha256sum <$f | cut -d ' ' -f 1)")
	}
	refuses("only root",
		"setpriv --reuid=nobody --regid=nogroup --clear-groups outrider envoy use 1.40.9")
	h.RunScript("systemctl start outrider")
	h.MustServe()
	runs := func(version string, number int) {
		t.Helper()
		status := h.Status()
		path, epoch := status.Envoy.Path, *status.CurrentEpoch
		if want := "/usr/lib/outrider/envoy-" + version + "/envoy"; path != want ||
			epoch != number {
			t.Errorf("epoch %d runs %s, want %d and %s", epoch, path, number, want)
		}
		if link := h.RunScript("readlink /usr/lib/outrider/envoy"); link != "envoy-"+version+"/envoy" {
			t.Errorf("the link leads to %s", link)
		}
	}
	runs("1.40.0", 0)

	load := h.StartLoad(standard())
	does("epoch 0 → 1 (hot-restart", "outrider envoy use 1.40.9")
	runs("1.40.9", 1)
	does("epoch 1 → 2 (side-by-side", "outrider envoy use 1.41.0")
	runs("1.41.0", 2)
	pid := h.LiveEpoch().PID
	refuses("unknown field", "outrider envoy use 1.42.0")
	runs("1.41.0", 2)
	refuses("Envoy 1.42.0 is not used: Envoy 1.41.0 is selected, as before",
		"outrider envoy use 1.42.0")
	runs("1.41.0", 2)
	if now := h.LiveEpoch().PID; now != pid {
		t.Errorf("the refusal changed Envoy: pid %d, was %d", now, pid)
	}
	if report := load.Stop(); report.Lost > 0 {
		t.Errorf("%d requests were lost: %v", report.Lost, report)
	}
	does("1.41.0   running, selected", "outrider envoy list")
	does("1.42.0   installed", "outrider envoy list")
	if state := h.Status().State; state != api.StateRunning {
		t.Errorf("the agent is %s", state)
	}
}
