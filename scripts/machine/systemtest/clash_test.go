package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Port conflicts between agent instances are detected before Envoy runs. The kernel would not
// report them, because Envoy listens with SO_REUSEPORT.
func TestInstances_PortConflict(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	at := func(name string, port, prometheus int) {
		h.WriteText("/etc/outrider/"+name+".toml", fmt.Sprintf(instanceConfiguration, port, port+1,
			port+2, prometheus, name))
		h.RunScript("chgrp outrider /etc/outrider/" + name + ".toml; chmod 0640 /etc/outrider/" +
			name + ".toml; mkdir -p /etc/outrider/" + name + ".mesh.d")
	}
	refused := func(unit, sentence string) {
		t.Helper()
		if out, err := h.Run(t.Context(), "systemctl", "start", unit); err == nil {
			t.Errorf("%s starts: %s", unit, out)
		}
		if exit, restarts := h.Property(unit, "ExecMainStatus"),
			h.Property(unit, "NRestarts"); exit != "78" || restarts != "0" {
			t.Errorf("%s: exit %s, restarted %s times", unit, exit, restarts)
		}
		if log := h.Journal("-o", "cat", "-u", unit); !strings.Contains(log, sentence) {
			t.Errorf("the journal does not say %q:\n%s", sentence, log)
		}
		h.MustRun(t, "systemctl", "reset-failed", unit)
	}
	at("a", 16000, 16003)
	at("b", 16010, 16003)
	taken := `telemetry.prometheus_address: port 16003 of 127.0.0.1 is taken by ` +
		`telemetry.prometheus_address of instance "a" (outrider@a.service), which runs`
	if out := h.MustRun(t, "outriderd", "--instance", "b", "--check"); !strings.Contains(out,
		`instance "a" (outrider@a.service), which does not run`) {
		t.Errorf("before either runs: %s", out)
	}
	h.MustRun(t, "systemctl", "start", "outrider@a.service")

	// The check and the start of the agent report the conflict.
	if out, err := h.Run(t.Context(), "outriderd", "--instance", "b", "--check"); err == nil ||
		!strings.Contains(out+err.Error(), taken) {
		t.Errorf("a check finds nothing: %s %v", out, err)
	}
	refused("outrider@b.service", taken)
	if left := h.ProcessIDs("envoy"); len(left) != 1 {
		t.Errorf("Envoys: %v", left)
	}
	// the ports of the instance itself are no conflict
	h.MustRun(t, "outriderd", "--instance", "a", "--check")

	// An instance also conflicts if only its Envoy runs, because its agent has failed.
	h.WriteText("/etc/outrider/a.conf.d/x.toml", "nonsense = 1\n")
	if out, err := h.Run(t.Context(), "systemctl", "restart", "outrider@a.service"); err == nil {
		t.Errorf("a broken instance starts: %s", out)
	}
	h.MustRun(t, "rm", "/etc/outrider/a.conf.d/x.toml")
	refused("outrider@b.service", "whose agent does not run, but whose Envoy does")
	h.MustRun(t, "systemctl", "start", "outrider@a.service")

	// A reload reports the conflict, too.
	at("b", 16010, 16013)
	h.MustRun(t, "systemctl", "start", "outrider@b.service")
	at("b", 16010, 16003)
	if out, err := h.Run(t.Context(), "outrider", "-i", "b", "reload"); err == nil ||
		!strings.Contains(out+err.Error(), taken) {
		t.Errorf("a reload finds nothing: %s %v", out, err)
	}
	at("b", 16010, 16013)
	h.MustRun(t, "outrider", "-i", "b", "reload")
	h.MustRun(t, "outrider", "-i", "a", "reload")

	// If mesh listeners conflict, the instance started later reports that until it is resolved.
	for _, name := range []string{"a", "b"} {
		h.WriteText("/etc/outrider/"+name+".mesh.d/web.yaml", mesh)
		shared := func() bool {
			return strings.Contains(h.MustRun(t, "outrider", "-i", name, "--json", "status"),
				"port-shared")
		}
		if name == "a" {
			h.Eventually(time.Minute, "Envoy listens",
				func() bool { return h.EnvoyHTTPStatus() == "200" })
			if shared() {
				t.Error("the first one shares its port")
			}
			continue
		}
		h.Eventually(time.Minute, "the second one says that it shares its port", shared)
		if got := h.MustRun(t, "outrider", "-i", name, "status"); !strings.Contains(got,
			`instance "a" (outrider@a.service), which runs`) {
			t.Errorf("status: %s", got)
		}
		h.WriteText("/etc/outrider/b.mesh.d/web.yaml", strings.NewReplacer("number: 80,",
			"number: 800,", "number: 81,", "number: 801,").Replace(mesh))
		h.Eventually(time.Minute, "it is cured", func() bool { return !shared() })
	}

	h.MustRun(t, "systemctl", "stop", "outrider@b.service")
	// If both instances start at the same time, as at a boot, one of them succeeds.
	h.MustRun(t, "systemctl", "stop", "outrider@a.service")
	at("b", 16010, 16003)
	if out, err := h.Run(t.Context(), "systemctl", "start", "outrider@a.service",
		"outrider@b.service"); err == nil {
		t.Errorf("both start: %s", out)
	}
	states := h.Property("outrider@a", "ActiveState") + " " + h.Property("outrider@b",
		"ActiveState")
	if states != "active failed" && states != "failed active" {
		t.Errorf("the two are %s", states)
	}
	h.MustRun(t, "systemctl", "stop", "outrider.slice")

	// If another program uses the ports, the agent starts once that program has exited.
	at("b", 16010, 16013)
	h.MustRun(t, "systemctl", "reset-failed")
	ports := map[string]string{"16012": "status.ready_port",
		"16013": "telemetry.prometheus_address"}
	for port := range ports {
		h.MustRun(t, "systemd-run", "--quiet", "--unit=stranger-"+port, "-p", "User=nobody",
			programs+"/backend", "-http", "127.0.0.1:"+port, "-tcp", "")
		h.RunScript("until curl -s -o /dev/null http://127.0.0.1:" + port + "/; do :; done")
	}
	h.MustRun(t, "systemctl", "start", "--no-block", "outrider@b.service")
	says := func(port string) string {
		return fmt.Sprintf("is taken: stranger-%s.service of user nobody listens on 127.0.0.1:%s",
			port, port)
	}
	conditions := func() string {
		out, _ := h.Run(t.Context(), "outrider", "-i", "b", "--json",
			"status")
		return out
	}
	for port, key := range ports {
		for who, text := range map[string]func() string{
			"STATUS": func() string { return h.Property("outrider@b", "StatusText") },
			"the journal": func() string {
				return h.Journal("-o", "cat", "-u",
					"outrider@b.service")
			},
			"status": conditions,
		} {
			h.Eventually(time.Minute, who+" names the program on port "+port, func() bool {
				got := text()
				return strings.Contains(got, key) && strings.Contains(got, says(port))
			})
		}
	}
	h.MustRun(t, "systemctl", "stop", "stranger-16012.service")
	h.Eventually(time.Minute, "one port is waited for",
		func() bool { return !strings.Contains(conditions(), says("16012")) })
	if got := conditions(); !strings.Contains(got, says("16013")) ||
		h.Property("outrider@b", "ActiveState") != "activating" {
		t.Errorf("with one port still taken: %s: %s", h.Property("outrider@b", "ActiveState"), got)
	}
	h.MustRun(t, "systemctl", "stop", "stranger-16013.service")
	h.Eventually(time.Minute, "the instance has started",
		func() bool { return h.Property("outrider@b", "ActiveState") == "active" })
	if got := conditions(); strings.Contains(got, "port-taken") ||
		h.Property("outrider@b", "NRestarts") != "0" {
		t.Errorf("restarted %s times: %s", h.Property("outrider@b", "NRestarts"), got)
	}
}
