package systemtest

import (
	"strings"
	"testing"
	"time"
)

// atBoot is a script that installs a unit to be started before the agent at each boot. The unit
// creates the other host (see outside), sends it one request, and writes the result to /var/called.
const atBoot = `set -eu
cat >/etc/outside.sh <<'END'
` + outside + `until ip netns exec far curl -s -o /dev/null http://198.51.100.9/; do sleep 0.1; done
curl -s -o /dev/null -m 5 -w '%{http_code}' http://198.51.100.9/ >/var/called ||
	echo " exit $?" >>/var/called
END
cat >/etc/systemd/system/outside.service <<END
[Unit]
After=network-pre.target
Before=outrider.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /etc/outside.sh
[Install]
WantedBy=multi-user.target
END
systemctl daemon-reload
systemctl enable outside.service outrider.service`

// TestCapture_Boot sends outbound requests during boots, before Envoy serves. They are neither
// captured nor refused, unless outrider-capture-early.service is enabled and [capture] fail is
// "closed". That unit refuses them, but not with an invalid configuration.
func TestCapture_Boot(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.RunScript(atBoot)
	h.WriteText("/etc/outrider/conf.d/capture.toml", interception+"fail = \"closed\"\n")
	boot := func(wantCalled string) {
		t.Helper()
		if err := h.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.startBackend()
		h.Eventually(time.Minute, "the boot is over", func() bool {
			return h.RunScript("systemctl is-system-running || true") != "starting"
		})
		if got := h.RunScript("cat /var/called"); got != wantCalled {
			t.Errorf("the call before the agent: %s, want %s", got, wantCalled)
		}
		if log := h.RunScript("journalctl -b -q --no-pager | grep -i 'ordering cycle' || true"); log != "" {
			t.Error(log)
		}
	}
	works := func(when string) {
		t.Helper()
		if got := h.RunScript("curl -s -o /dev/null -m 2 -w '%{http_code}' http://198.51.100.9/" +
			" || true"); got != "200" {
			t.Errorf("%s: %q", when, got)
		}
	}
	nothingLeft := func(when string) {
		t.Helper()
		if left := h.RunScript("nft list ruleset"); left != "" {
			t.Errorf("%s: left: %s", when, left)
		}
		works(when)
	}
	boot("200")
	h.captureIs("on")

	h.RunScript("systemctl enable outrider-capture-early.service")
	boot("000 exit 7")
	h.captureIs("on")
	works("captured")
	early := h.sinceBoot("outrider-capture-early.service", "ActiveEnterTimestampMonotonic")
	if network := h.sinceBoot("network-pre.target", "ActiveEnterTimestampMonotonic"); network < early {
		t.Errorf("the network may start %v after systemd, the early unit ends %v after it", network,
			early)
	}
	if mounts := h.RunScript("systemctl show -P RequiresMountsFor outrider-cleanup.service " +
		"outrider-capture.service outrider-capture-early.service"); strings.Contains(mounts, "/var") {
		t.Errorf("a /var on the network would wait for itself: %s", mounts)
	}
	h.RunScript("systemctl stop outrider")
	nothingLeft("stopped")

	h.RunScript("rm /usr/local/bin/envoy")
	boot("000 exit 7")
	const fix = "outrider cleanup --stop"
	if log := h.Journal("-b", "-u", "outrider-capture-early.service"); !strings.Contains(log, fix) {
		t.Errorf("the journal does not say how to lift the refusal:\n%s", log)
	}
	h.RunScript(fix)
	nothingLeft("cleaned up")

	h.RunScript("systemctl disable outrider; ln -s /opt/envoy/envoy /usr/local/bin/envoy")
	boot("200")
	nothingLeft("with a disabled agent")

	h.RunScript("systemctl enable outrider")
	h.WriteText("/etc/outrider/conf.d/broken.toml", "[capture\n")
	boot("200")
	for _, unit := range []string{"outrider.service", "outrider-capture-early.service"} {
		if state := h.Property(unit, "ActiveState"); strings.TrimSpace(state) != "failed" {
			t.Errorf("%s is %s", unit, state)
		}
	}
	nothingLeft("with a broken configuration")
}
