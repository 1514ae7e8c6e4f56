package systemtest

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// monitor starts a command that monitors the machine's bus, as a user, and writes its output to a
// file.
func (h *Host) monitor(user, file string, command ...string) {
	h.t.Helper()
	h.MustRun(h.t, "systemd-run", append([]string{"--quiet", "--unit=monitor-" + user, "-p",
		"User=" + user, "-p", "StandardOutput=file:" + file}, command...)...)
}

// The agent sends D-Bus signals during a reload, a refused reload and a stop. Every user receives
// them. Only root may monitor all of its messages.
func TestBus_SendsSignals(t *testing.T) {
	t.Parallel()
	h := NewBusHost(t)
	if out, err := h.As("outrider", "monitor", busName); err == nil {
		t.Errorf("only root may see all messages: %s", out)
	}
	h.monitor("root", "/run/root.txt", "busctl", "monitor", "--json=short", busName)
	h.monitor("nobody", "/run/nobody.txt", "dbus-monitor", "--system", "type='signal',sender='"+
		busName+"'")
	h.Eventually(time.Minute, "the monitors listen", func() bool {
		h.MustRun(t, "busctl", "--quiet", "call", busName, busObject, "org.freedesktop.DBus.Peer",
			"Ping")
		_, err := h.Run(t.Context(), "sh", "-c",
			"grep -q Ping /run/root.txt && grep -q NameAcquired /run/nobody.txt")
		return err == nil
	})
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	t.Cleanup(func() {
		if t.Failed() {
			out, err := h.Run(context.Background(), "cut", "-c1-500", "/run/root.txt")
			t.Logf("the monitor saw (%v):\n%s", err, out)
		}
	})
	told := func(what, file string, patterns ...string) {
		t.Helper()
		script := "true"
		for _, pattern := range patterns {
			script += fmt.Sprintf(" && grep -E -q '%s' %s", pattern, file)
		}
		h.Eventually(time.Minute, what+": "+script,
			func() bool { _, err := h.Run(t.Context(), "sh", "-c", script); return err == nil })
	}
	told("a reload", "/run/root.txt",
		`"path":"/org/outrider/Agent1","interface":"org.freedesktop.DBus.Properties","member":"PropertiesChanged".*"State":\{"type":"s","data":"reloading"\}`,
		`"member":"PropertiesChanged".*"CurrentEpoch":\{"type":"u","data":1\}`,
		`"member":"PropertiesChanged".*"LastReloadTimestamp":\{"type":"t","data":[1-9]`,
		`"member":"InterfacesAdded".*"/org/outrider/Agent1/epoch/1"`,
		`"member":"EpochStarted".*\[1,"/org/outrider/Agent1/epoch/1"\]`,
		`"member":"EpochLive".*\[1,`, `"member":"ReloadFinished".*"restarted",1,`)
	told("a reload, to everyone", "/run/nobody.txt", "member=PropertiesChanged", "member=EpochLive",
		"member=ReloadFinished")
	h.WriteText("/etc/outrider/conf.d/50-broken.toml", "nonsense = 1\n")
	if out, err := h.Run(t.Context(), "systemctl", "reload", "outrider.service"); err == nil {
		t.Errorf("a broken configuration is taken: %s", out)
	}
	told("a refused reload", "/run/root.txt", `"member":"ReloadRefused".*50-broken.toml:1`,
		`"member":"PropertiesChanged".*"Conditions":.*configuration-refused`)
	h.MustRun(t, "rm", "/etc/outrider/conf.d/50-broken.toml")
	h.MustRun(t, "systemctl", "stop", "outrider.service")
	told("the stop", "/run/root.txt", `"member":"Draining"`,
		`"member":"PropertiesChanged".*"State":\{"type":"s","data":"stopping"\}`,
		`"member":"EpochExited"`)
}
