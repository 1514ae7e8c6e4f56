// Package systemtest tests Outrider together with systemd, on machines that package scripts/machine
// boots. The tests need root.
package systemtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// fullEnvironment is an environment variable. If it is set, the tests run with the full numbers,
// durations and rates instead of smaller ones. make bench sets it.
const fullEnvironment = "OUTRIDER_TEST_FULL"

func full() bool { return os.Getenv(fullEnvironment) != "" }

// rootEnvironment is an environment variable with the root directory of another system for the
// machines, which has another version of systemd (scripts/machine/root).
const rootEnvironment = "OUTRIDER_TEST_ROOT"

// standard returns the rate of a load, relative to the standard load: 1 in the full test, less
// otherwise.
func standard() float64 {
	if full() {
		return 1
	}
	return 0.25
}

// Host is a machine in which Outrider is installed as by its packages, with Envoy. Envoy forwards
// ports 80 (HTTP) and 81 (TCP) to a backend on the same machine.
type Host struct {
	*machine.Machine
	t testing.TB
}

// Where directories of this host are mounted in the machine.
const (
	programs  = "/opt/programs"
	units     = "/opt/units"
	packaging = "/opt/packaging"
	envoy     = "/opt/envoy"
)

const installScript = `set -eu
install -D -m 0755 -t /usr/bin /opt/programs/outrider
install -D -m 0755 -t /usr/sbin /opt/programs/outriderd
install -D -m 0755 -t /usr/libexec/outrider /opt/programs/outrider-keeper \
	/opt/programs/outrider-bootstrap /opt/programs/outrider-capture /opt/programs/outrider-probe \
	/opt/packaging/libexec/outrider-seal
install -D -m 0644 -t /usr/lib/systemd/system /opt/units/*
rm /usr/lib/systemd/system/outrider-discoveryd.service # it is in another package
install -D -m 0644 -t /usr/lib/systemd/system-preset /opt/packaging/preset/*
install -D -m 0644 -t /usr/lib/systemd/catalog /opt/packaging/catalog/*
install -D -m 0644 -t /usr/lib/sysusers.d /opt/packaging/sysusers.d/*
install -D -m 0644 -t /usr/lib/tmpfiles.d /opt/packaging/tmpfiles.d/*
install -D -m 0644 -t /usr/share/dbus-1/system.d /opt/packaging/dbus/org.outrider.Agent1.conf
install -D -m 0644 -t /usr/share/dbus-1/interfaces /opt/packaging/dbus/interfaces/*.xml
install -D -m 0644 -t /usr/share/polkit-1/actions /opt/packaging/polkit/org.outrider.agent1.policy
install -D -m 0644 -t /usr/share/polkit-1/rules.d /opt/packaging/polkit/50-outrider.rules
ln -sfn /opt/envoy/envoy /usr/local/bin/envoy
mkdir -p /etc/outrider/conf.d /etc/outrider/mesh.d
systemd-sysusers outrider.conf
systemd-tmpfiles --create outrider.conf
journalctl --update-catalog
systemctl daemon-reload
systemctl reload dbus.service
systemctl preset outrider.service`

const configuration = `
[envoy]
concurrency = 2
drain_duration = "2s"
parent_shutdown_duration = "4s"
termination_drain_duration = "1s"
live_timeout = "30s"
`

const mesh = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  ports:
  - {number: 80, name: http, protocol: HTTP}
  - {number: 81, name: tcp, protocol: TCP}
  resolution: STATIC
  endpoints:
  - address: 127.0.0.1
    ports: {http: 9000, tcp: 9001}
`

// NewHost boots a machine and installs Outrider without starting it. more lists more directories of
// this host to mount in the machine, in the format of machine.Options.BindMounts.
func NewHost(t testing.TB, more ...string) *Host {
	t.Helper()
	return newHost(t, machine.Options{BindMounts: more})
}

func newHost(t testing.TB, options machine.Options) *Host {
	t.Helper()
	root := parts.RepositoryRoot()
	options.Root = os.Getenv(rootEnvironment)
	options.BindMounts = append(options.BindMounts, rig.Build(t, false).Dir+":"+programs,
		filepath.Join(root, "units")+":"+units, filepath.Join(root, "packaging")+":"+packaging,
		filepath.Dir(parts.EnvoyPath(t))+":"+envoy)
	h := &Host{t: t, Machine: machine.BootForTest(t, options)}
	h.RunScript(installScript)
	h.startBackend()
	h.WriteText("/etc/outrider/outrider.toml", configuration)
	h.WriteText("/etc/outrider/mesh.d/web.yaml", mesh)
	h.RunScript("chgrp outrider /etc/outrider/outrider.toml; chmod 0640 /etc/outrider/outrider.toml")
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			log, _ := h.Run(ctx, "journalctl", "--no-pager", "-o", "short-monotonic", "-n", "150",
				"-u", "outrider*", "-u", "init.scope")
			t.Logf("the journal:\n%s", log)
		}
	})
	return h
}

// packages returns a folder with the files of a Debian package and of those that it needs, which
// scripts/setup has downloaded.
func packages(t testing.TB, name string) string {
	t.Helper()
	script := filepath.Join(parts.RepositoryRoot(), "scripts", "get-packages")
	out, err := exec.CommandContext(t.Context(), script, name).Output()
	if err != nil {
		t.Fatalf("%s %s: %v; run scripts/setup test", script, name, err)
	}
	return strings.TrimSpace(string(out))
}

// startBackend starts the backend, which runs until the machine reboots.
func (h *Host) startBackend() {
	h.t.Helper()
	h.MustRun(h.t, "systemd-run", "--quiet", "--unit=backend", programs+"/backend", "-http",
		"127.0.0.1:9000", "-tcp", "127.0.0.1:9001")
	h.Eventually(time.Minute, "the backend answers", func() bool {
		_, err := h.Run(h.t.Context(), "curl", "-s", "-o", "/dev/null", "http://127.0.0.1:9000/")
		return err == nil
	})
}

// RunScript runs a shell script in the machine and returns its output. It fails the test if the
// script fails.
func (h *Host) RunScript(text string) string {
	h.t.Helper()
	return h.MustRun(h.t, "sh", "-c", text)
}

// WriteText writes a file in the machine.
func (h *Host) WriteText(path, text string) {
	h.t.Helper()
	if err := h.WriteFile(h.t.Context(), path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// Property returns a property of a unit.
func (h *Host) Property(unit, name string) string {
	h.t.Helper()
	return h.MustRun(h.t, "systemctl", "show", "--value", "-p", name, unit)
}

// MainPID returns the PID of a unit's main process, 0 if there is none.
func (h *Host) MainPID(unit string) int {
	h.t.Helper()
	pid, err := strconv.Atoi(h.Property(unit, "MainPID"))
	if err != nil {
		h.t.Fatal(err)
	}
	return pid
}

// Status returns the agent's status.
func (h *Host) Status() api.Status {
	h.t.Helper()
	var status api.Status
	if err := json.Unmarshal([]byte(h.MustRun(h.t, "outrider", "--json", "status")),
		&status); err != nil {
		h.t.Fatal(err)
	}
	return status
}

// LiveEpoch returns the live epoch, and fails the test if there is none.
func (h *Host) LiveEpoch() api.Epoch {
	h.t.Helper()
	status := h.Status()
	for _, epoch := range status.Epochs {
		if epoch.State == api.EpochLive {
			return epoch
		}
	}
	h.t.Fatalf("no epoch is live: %+v", status)
	return api.Epoch{}
}

// EnvoyHTTPStatus sends a request for web.test to Envoy's port 80 and returns the status code or
// the error.
func (h *Host) EnvoyHTTPStatus() string {
	h.t.Helper()
	out, err := h.Run(h.t.Context(), "curl", "-s", "-m", "5", "-o", "/dev/null", "-w",
		"%{http_code}", "-H", "Host: web.test", "http://127.0.0.1:80/")
	if err != nil {
		return err.Error()
	}
	return out
}

// MustServe fails the test unless EnvoyHTTPStatus returns status code 200.
func (h *Host) MustServe() {
	h.t.Helper()
	if got := h.EnvoyHTTPStatus(); got != "200" {
		h.t.Fatalf("GET through Envoy on port 80: %s", got)
	}
}

// Eventually polls until holds returns true, and fails the test after limit. what names the awaited
// condition.
func (h *Host) Eventually(limit time.Duration, what string, holds func() bool) {
	h.t.Helper()
	parts.Eventually(h.t, limit, what, holds)
}

// Journal runs journalctl after journald has read all earlier messages: they are datagrams, which
// journald may read after their sender has continued.
func (h *Host) Journal(arguments ...string) string {
	h.t.Helper()
	h.MustRun(h.t, "journalctl", "--sync")
	return h.MustRun(h.t, "journalctl", append([]string{"-q", "--no-pager"}, arguments...)...)
}

// ProcessIDs returns the PIDs of the machine's processes whose program has this name.
func (h *Host) ProcessIDs(name string) []string {
	h.t.Helper()
	out, err := h.Run(h.t.Context(), "pgrep", "-x", name)
	if err != nil {
		return nil // pgrep fails if there is none
	}
	return strings.Fields(out)
}

// ProcessStatusField returns the value of the field with this name in /proc/PID/status.
func (h *Host) ProcessStatusField(pid int, name string) string {
	h.t.Helper()
	for line := range strings.Lines(h.MustRun(h.t, "cat", fmt.Sprintf("/proc/%d/status", pid))) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	h.t.Fatalf("/proc/%d/status has no %s", pid, name)
	return ""
}
