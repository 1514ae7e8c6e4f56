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

// earlierVersion is the version of the package that scripts/get-earlier builds from an earlier
// commit.
const earlierVersion = "0.9.0"

// TestUpgrade_FromAnEarlierVersion upgrades from the package of an earlier commit and downgrades
// again, twice, under load. No request is lost. A file of the mesh configuration is invalid all the
// time, so each agent must read its last good version from the state that the other one has stored.
// The test runs only as part of the full tests, since a shallow clone does not have the commit.
func TestUpgrade_FromAnEarlierVersion(t *testing.T) {
	if !full() {
		return
	}
	out, err := exec.CommandContext(t.Context(),
		filepath.Join(parts.RepositoryRoot(), "scripts", "get-earlier")).Output()
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
	// The agent's control loop must respond within half of the watchdog's interval. On a busy
	// machine that takes up to two seconds.
	h.WriteText("/etc/systemd/system/outrider.service.d/test.conf", "[Service]\nWatchdogSec=8s\n")
	h.RunScript("systemctl daemon-reload; systemctl start outrider.service")
	h.MustServe()
	ready := func(after string) {
		h.Eventually(time.Minute, "after "+after+" the agent is ready", func() bool {
			out, err := h.Run(t.Context(), "outrider", "wait", "--timeout", "10s")
			return err == nil && out == "ready"
		})
		h.MustServe()
	}
	h.RunScript("sed -i '/^ *hosts:/s/hosts/hots/' /etc/outrider/mesh.d/web.yaml")
	h.Eventually(time.Minute, "the invalid file is reported", func() bool {
		return strings.Contains(h.RunScript("outrider status || true"), "web.yaml:")
	})
	running := h.StartLoad(0.2)
	for range 2 {
		for _, version := range []string{newVersion, earlierVersion} {
			running.Mark(version)
			before := h.LiveEpoch()
			h.installPackage(version)
			ready(version)
			if live := h.LiveEpoch(); live.PID != before.PID {
				t.Errorf("%s: Envoy %d became %d", version, before.PID, live.PID)
			}
			h.MustRun(t, "systemctl", "reload", "outrider.service")
			ready("a reload of " + version)
		}
	}
	report := running.Stop()
	t.Logf("%d requests, %d lost", report.Total, report.Lost)
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("lost of %d requests: %v; marks %v", report.Total, lost, report.Marks)
	}
}
