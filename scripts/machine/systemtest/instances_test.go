package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const instanceConfiguration = `
[envoy]
concurrency = 1
admin_port = %d
drain_duration = "2s"
parent_shutdown_duration = "4s"
termination_drain_duration = "1s"
[status]
address = "127.0.0.1:%d"
ready_port = %d
[telemetry]
prometheus_address = "127.0.0.1:%d"
[discovery]
files = ["/etc/outrider/%s.mesh.d"]
`

// Instance writes the configuration of the instance with this name and index i, whose Envoy listens
// on ports 800 + i (HTTP) and 900 + i (TCP).
func (h *Host) Instance(name string, i int) {
	h.t.Helper()
	port := 16000 + 10*i
	h.WriteText("/etc/outrider/"+name+".toml", fmt.Sprintf(instanceConfiguration, port, port+1,
		port+2,
		port+3, name))
	h.WriteText("/etc/outrider/"+name+".mesh.d/web.yaml", strings.NewReplacer("number: 80,",
		fmt.Sprintf("number: %d,", 800+i),
		"number: 81,", fmt.Sprintf("number: %d,", 900+i)).Replace(mesh))
}

// Two instances and the default agent have separate Envoys, directories and units, and share
// outrider.slice.
func TestInstances(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	names := []string{"a", "web-1"}
	for i, name := range names {
		h.Instance(name, i)
	}
	h.MustRun(t, "systemctl", "start", "outrider.service", "outrider@a.service",
		"outrider@web-1.service")
	h.MustServe()
	for _, name := range []string{busName, busName + ".Instance._a",
		busName + ".Instance._web_2d1"} {
		h.OnBus(name)
	}
	if said := h.Journal("-o", "cat", "-p", "warning", "-u", "outrider.slice"); said != "" {
		t.Errorf("a start says: %s", said)
	}
	get := func(port int) string {
		out, err := h.Run(t.Context(), "curl", "-s", "-m", "5", "-o", "/dev/null", "-w",
			"%{http_code}", "-H", "Host: web.test", fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return err.Error()
		}
		return out
	}
	for i, name := range names {
		if got := get(800 + i); got != "200" {
			t.Errorf("instance %s on port %d: %s", name, 800+i, got)
		}
		for path, want := range map[string]string{
			"/run/outrider":                          "1775 root root",
			"/run/outrider-envoy":                    "1770 root outrider-envoy",
			"/var/lib/outrider":                      "710 root outrider",
			"/var/lib/outrider/outrider":             "700 outrider outrider",
			"/run/outrider/" + name:                  "1775 root root",
			"/run/outrider/" + name + "/envoy":       "2751 outrider outrider-envoy",
			"/run/outrider/" + name + "/keeper.sock": "600 outrider outrider",
			"/run/outrider-envoy/" + name:            "1770 root outrider-envoy",
			"/var/lib/outrider/" + name:              "700 outrider outrider",
		} {
			if got := h.MustRun(t, "stat", "-c", "%a %U %G", path); got != want {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
		h.MustRun(t, "systemctl", "reload", "outrider@"+name)
	}
	pid := h.LiveEpoch().PID

	// Stopping one instance leaves none of its files except for the sockets that systemd keeps
	// open, and the other agents' Envoys continue.
	h.MustRun(t, "systemctl", "stop", "outrider@a.service")
	if left := h.RunScript("find /run/outrider/a /run/outrider-envoy/a ! -type d | sort"); left !=
		"/run/outrider/a/capture.sock\n/run/outrider/a/keeper.sock" {
		t.Errorf("left behind: %s", left)
	}
	if got := get(801); got != "200" || h.LiveEpoch().PID != pid {
		t.Errorf("the stop of one instance ended another: %s", got)
	}
	h.MustServe()

	// Restarting the agent of the other instance keeps its Envoy.
	before := h.Property("outrider-envoy@web-1", "MainPID")
	h.MustRun(t, "systemctl", "restart", "outrider@web-1.service")
	if got := get(801); got != "200" || h.Property("outrider-envoy@web-1", "MainPID") != before {
		t.Errorf("the restart of an instance's agent ended its Envoy: %s", got)
	}

	h.MustRun(t, "systemctl", "stop", "outrider.slice")
	for _, program := range []string{"outriderd", "outrider-keeper", "envoy"} {
		if left := h.ProcessIDs(program); len(left) > 0 {
			t.Errorf("%s still runs: %v", program, left)
		}
	}
}

// A service that requires outrider-online.target and is ordered after it starts only when Envoy
// serves. It continues when the agent is restarted or killed.
func TestOnlineTarget(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.WriteText("/etc/systemd/system/needy.service", `
[Unit]
Requires=outrider-online.target
After=outrider-online.target
[Service]
ExecStartPre=/usr/bin/curl -sf -m 5 -o /dev/null -H "Host: web.test" http://127.0.0.1:80/
ExecStart=/usr/bin/sleep infinity
`)
	h.MustRun(t, "systemctl", "daemon-reload")
	h.MustRun(t, "systemctl", "start", "needy.service") // also starts the agent
	needy := h.MainPID("needy")
	h.MustRun(t, "systemctl", "restart", "outrider.service")
	agent := h.MainPID("outrider")
	h.MustRun(t, "systemctl", "kill", "--kill-whom=main", "-s", "KILL", "outrider.service")
	h.Eventually(time.Minute, "another agent runs", func() bool {
		now := h.MainPID("outrider")
		return now != 0 && now != agent && h.Property("outrider", "ActiveState") == "active"
	})
	if now := h.MainPID("needy"); now != needy || now == 0 {
		t.Errorf("the service that waited was ended with the agent: pid %d became %d", needy, now)
	}
}

// A power-off with a running agent takes at most 30 seconds, much less than the stop timeout of
// outrider.service.
func TestPowerOff(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	began := time.Now()
	if err := h.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("switched off after %v", took)
	}
	t.Logf("off after %v", time.Since(began))
}
