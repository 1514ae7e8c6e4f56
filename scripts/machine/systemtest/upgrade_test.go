package systemtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// earlierVersion is the version of the package that scripts/get-earlier builds from the history.
const earlierVersion = "0.9.0"

// TestUpgrade_FromAnEarlierVersion upgrades from a package of the history and downgrades, twice,
// under load and while a file of the mesh configuration is invalid; each agent reads its last good
// version from the other's state. It runs in full tests only, since a clone may have no history.
func TestUpgrade_FromAnEarlierVersion(t *testing.T) {
	if !full() {
		return
	}
	out, err := exec.CommandContext(t.Context(),
		filepath.Join(parts.Root(), "scripts", "get-earlier")).Output()
	if err != nil {
		t.Fatalf("scripts/get-earlier: %v", err)
	}
	folder := debs(t)
	if err := os.CopyFS(filepath.Join(folder, earlierVersion),
		os.DirFS(strings.TrimSpace(string(out)))); err != nil {
		t.Fatal(err)
	}
	h := NewHost(t, folder+":"+debPlace)
	h.installPackage(earlierVersion)
	// The agent must respond within half of this time; on a busy machine that takes a second or
	// two.
	h.Write("/etc/systemd/system/outrider.service.d/test.conf", "[Service]\nWatchdogSec=8s\n")
	h.Script("systemctl daemon-reload; systemctl start outrider.service")
	h.Serves()
	ready := func(after string) {
		h.Eventually(time.Minute, "after "+after+" the agent is ready", func() bool {
			out, err := h.Run(t.Context(), "outrider", "wait", "--timeout", "10s")
			return err == nil && out == "ready"
		})
		h.Serves()
	}
	h.Script("sed -i '/^ *hosts:/s/hosts/hots/' /etc/outrider/mesh.d/web.yaml")
	h.Eventually(time.Minute, "the invalid file is reported", func() bool {
		return strings.Contains(h.Script("outrider status || true"), "web.yaml:")
	})
	running := h.StartLoad(0.2)
	for range 2 {
		for _, version := range []string{newVersion, earlierVersion} {
			running.Mark(version)
			before := h.Live()
			h.installPackage(version)
			ready(version)
			if live := h.Live(); live.PID != before.PID {
				t.Errorf("%s: Envoy %d became %d", version, before.PID, live.PID)
			}
			h.MustRun(t, "systemctl", "reload", "outrider.service")
			ready("a reload of " + version)
		}
	}
	report := running.Stop()
	t.Logf("%d requests, %d lost", report.Total, report.Lost)
	if lost := rig.Losses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("lost of %d requests: %v; marks %v", report.Total, lost, report.Marks)
	}
}
