package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/rig"
)

// captureIs waits until `outrider capture show` reports a state.
func (h *Host) captureIs(want string) {
	h.t.Helper()
	h.Eventually(time.Minute, "capture is "+want, func() bool {
		return strings.HasPrefix(h.RunScript("outrider capture show || true"), "capture is "+want)
	})
}

// killHelper kills outrider-capture, and calls then. It returns the time until the next
// outrider-capture has restored the nftables rules.
func (h *Host) killHelper(then func()) time.Duration {
	h.t.Helper()
	helper := h.MainPID("outrider-capture")
	h.RunScript("systemctl kill -s KILL outrider-capture.service")
	began := time.Now()
	then()
	h.Eventually(time.Minute, "the rules are back", func() bool {
		now := h.MainPID("outrider-capture")
		return now != helper && now != 0 &&
			strings.Contains(h.RunScript("nft list table inet outrider || true"), "redirect to")
	})
	return time.Since(began)
}

// rounds returns a number of repetitions: n in the full test, otherwise 3.
func rounds(n int) int {
	if full() {
		return n
	}
	return 3
}

// Clients of a mesh service and of a host outside the mesh, whose connections are captured, lose no
// request when the agent, its package, outrider-capture or the firewall rules are restarted or
// replaced. In the full test, both loads together send 500 requests a second.
func TestCapture_LosesNoRequest(t *testing.T) {
	h := NewHost(t, debs(t)+":"+debPlace)
	h.installPackage(oldVersion)
	h.RunScript(outside)
	h.WriteText("/etc/outrider/conf.d/capture.toml", interception)
	h.RunScript("systemctl start outrider")
	h.captureIs("on")
	var loads []*Load
	for _, host := range []string{"web.test", "outside.test"} {
		loads = append(loads, h.StartLoad(standard()/2, "-http", "198.51.100.9:80", "-http2", "",
			"-tcp", "", "-host", host))
	}
	do := func(name string, disturb func()) {
		for _, l := range loads {
			l.Mark(name)
		}
		disturb()
		h.MustRun(t, "outrider", "wait", "--timeout", "30s")
		h.captureIs("on")
	}
	step := func(name, script string, n int) {
		for range n {
			do(name, func() { h.RunScript(script) })
		}
	}
	do("package upgrade", func() {
		helper := h.MainPID("outrider-capture")
		h.installPackage(newVersion)
		h.Eventually(time.Minute, "the helper has replaced itself in place", func() bool {
			return h.RunScript(fmt.Sprintf("readlink /proc/%d/exe || true", helper)) ==
				"/usr/libexec/outrider/outrider-capture"
		})
	})
	step("hot restart", "systemctl reload outrider", rounds(10))
	step("agent kill", "systemctl kill -s KILL outrider.service; sleep 1", rounds(10))
	step("restart", "systemctl restart outrider", 1)
	step("firewall reload", "nft flush ruleset", rounds(10))
	step("upgrade of the helper", "systemctl reload outrider-capture.service", rounds(10))
	for range rounds(20) {
		loads[0].Mark("helper kill")
		t.Logf("rules back %v after the kill of the helper", h.killHelper(func() {}))
	}
	h.captureIs("on")
	for _, l := range loads {
		report := l.Stop()
		t.Logf("%d requests, %d lost", report.Total, report.Lost)
		if lost := rig.CountLosses(report, nil); len(lost) > 0 ||
			report.Classes[load.ClassNewConnections].Requests == 0 {
			t.Errorf("lost of %d requests: %v; marks %v", report.Total, lost, report.Marks)
		}
	}
	h.RunScript("systemctl stop outrider")
	if left := h.RunScript("nft list ruleset"); left != "" {
		t.Errorf("left: %s", left)
	}
}

// When Envoy is killed, or cannot start, the capture does not cut off the host: its connections
// bypass Envoy.
func TestCapture_EnvoyKilled(t *testing.T) {
	h := NewHost(t)
	h.RunScript(outside)
	h.WriteText("/etc/outrider/conf.d/capture.toml", interception+
		"[envoy]\nrestart_backoff_max = \"1s\"\nrestart_limit = 100\n")
	h.RunScript("systemctl start outrider")
	call := func() bool {
		return h.RunScript("curl -s -o /dev/null -m 2 -w '%{http_code}' http://198.51.100.9/"+
			" || true") == "200"
	}
	kill := func() { // waits until Envoy has exited, because an exiting Envoy may still respond
		h.Eventually(time.Minute, "Envoy is killed", func() bool {
			_, err := h.Run(t.Context(), "sh", "-c", "pid=$(pgrep -x envoy) && kill -KILL $pid && "+
				"while kill -0 $pid 2>/dev/null; do sleep 0.01; done")
			return err == nil
		})
	}
	for range rounds(20) {
		h.captureIs("on")
		kill()
		began := time.Now()
		h.Eventually(time.Minute, "the outside answers", call)
		t.Logf("the outside answers %v after the kill of Envoy", time.Since(began))
	}
	h.captureIs("on")
	h.RunScript("mount --bind /bin/false /opt/envoy/envoy")
	kill()
	began := time.Now()
	h.Eventually(time.Minute, "the outside answers without Envoy", call)
	t.Logf("the outside answers %v after the kill of an Envoy that cannot start", time.Since(began))
	h.captureIs("withdrawn")
	h.RunScript("umount /opt/envoy/envoy")
	h.captureIs("on")
}
