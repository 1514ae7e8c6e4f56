package packaging

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/parts"
)

// host is a machine on which packages are installed.
type host struct {
	*machine.Machine
	t *testing.T
}

const (
	oldPlace = "/opt/old"
	newPlace = "/opt/new"

	// Prepare the machine: a policy of the test environment may prevent packages from starting
	// services, and dpkg must not ask questions.
	prepare = `set -eu
rm -f /usr/sbin/policy-rc.d
install -D -m 0755 /opt/envoy/envoy /usr/local/bin/envoy`

	settings = `
[envoy]
concurrency = 1
admin_port = %d
drain_duration = "1s"
parent_shutdown_duration = "2s"
termination_drain_duration = "200ms"
live_timeout = "60s"
[status]
address = "127.0.0.1:%d"
ready_port = %d
[telemetry]
prometheus_address = "127.0.0.1:%d"
`
	mesh = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  ports: [{number: %[1]d, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  http: [{directResponse: {status: 200, body: {string: "served"}}}]
`
	// request sends an HTTP request with bash alone.
	request = `exec 3<>/dev/tcp/127.0.0.1/%d && printf 'GET / HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n' >&3 && IFS= read -r -t 5 line <&3 && echo "${line%%$'\r'}"`
)

// ports of the host's agent and of the instance edge.
var ports = map[string]int{"outrider": 80, "outrider@edge": 8080}

func newHost(t *testing.T, more ...string) *host {
	t.Helper()
	oldFolder, newFolder := shared.old(t), shared.new(t)
	h := &host{t: t, Machine: machine.BootForTest(t, machine.Options{BindMounts: append(more,
		oldFolder+":"+oldPlace, newFolder+":"+newPlace, filepath.Dir(parts.EnvoyPath(t))+
			":/opt/envoy")})}
	h.script(prepare)
	t.Cleanup(func() {
		if t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			log, _ := h.Run(ctx, "journalctl", "--no-pager", "-o", "short-monotonic", "-n", "100",
				"-u", "outrider*")
			t.Logf("the journal:\n%s", log)
		}
	})
	return h
}

func (h *host) script(text string) string {
	h.t.Helper()
	return h.MustRun(h.t, "sh", "-c", text)
}

// configure writes the configuration of both agents.
func (h *host) configure() {
	h.t.Helper()
	for path, text := range map[string]string{
		"/etc/outrider/conf.d/50-test.toml": fmt.Sprintf(settings, 15000, 15020, 15021, 15090),
		"/etc/outrider/mesh.d/web.yaml":     fmt.Sprintf(mesh, ports["outrider"]),
		"/etc/outrider/edge.toml": fmt.Sprintf(settings, 16000, 16020, 16021, 16090) +
			"[discovery]\nfiles = [\"/etc/outrider/edge.mesh.d\"]\n",
		"/etc/outrider/edge.mesh.d/web.yaml": fmt.Sprintf(mesh, ports["outrider@edge"]),
	} {
		if err := h.WriteFile(h.t.Context(), path, []byte(text), 0o644); err != nil {
			h.t.Fatal(err)
		}
	}
}

// serves fails the test unless the Envoys answer.
func (h *host) serves(units ...string) {
	h.t.Helper()
	for _, unit := range units {
		if got := h.MustRun(h.t, "bash", "-c",
			fmt.Sprintf(request, ports[unit])); got != "HTTP/1.1 200 OK" {
			h.t.Errorf("%s answers %q", unit, got)
		}
	}
}

// whileServing sends requests during work, and fails the test if any has no answer.
func (h *host) whileServing(unit string, work func()) {
	h.t.Helper()
	const loop = `while [ ! -e /run/enough ]; do (%s) || echo failed; sleep 0.02; done; rm /run/enough`
	done := make(chan string, 1)
	go func() {
		out, err := h.Run(h.t.Context(), "bash", "-c",
			fmt.Sprintf(loop, fmt.Sprintf(request, ports[unit])))
		if err != nil {
			out += "\n" + err.Error()
		}
		done <- out
	}()
	work()
	h.script("touch /run/enough")
	answers := strings.Split(<-done, "\n")
	for _, answer := range answers {
		if answer != "HTTP/1.1 200 OK" {
			h.t.Errorf("%s: %q, one of %d answers", unit, answer, len(answers))
		}
	}
	if len(answers) < 5 {
		h.t.Errorf("only %d requests while it was upgraded", len(answers))
	}
}

func (h *host) property(unit, name string) string {
	h.t.Helper()
	return h.MustRun(h.t, "systemctl", "show", "--value", "-p", name, unit)
}

// expect compares the output of a script.
func (h *host) expect(want, script string) {
	h.t.Helper()
	if got := h.script(script); got != want {
		h.t.Errorf("%s\nprints  %q\nand not %q", script, got, want)
	}
}

// eventually is like expect, but polls for a limited time.
func (h *host) eventually(want, script string) {
	h.t.Helper()
	parts.Eventually(h.t, time.Minute, fmt.Sprintf("%s\nprints %q", script, want), func() bool {
		return h.script(script) == want
	})
}

// nothingRuns fails the test if a process or a file of a running Outrider remains.
func (h *host) nothingRuns() {
	h.t.Helper()
	h.expect("", "ps -e -o comm= | grep -E -x 'outriderd|outrider-keeper|envoy' || true")
	h.expect("", "systemctl list-units --no-legend --plain --all "+
		"--state=active,activating,failed 'outrider*'")
	h.expect("", "ls -d /run/outrider* /dev/shm/envoy* 2>/dev/null || true")
}

// upgrade installs a version. It checks that the agents are restarted, that keepers and Envoys
// continue to run, and that no request is lost meanwhile.
func (h *host) upgrade(install func()) {
	h.t.Helper()
	units := []string{"outrider", "outrider@edge"}
	type pids struct{ agent, keeper, envoy string }
	look := func(unit string) pids {
		keeper := h.property(strings.Replace(unit, "outrider", "outrider-envoy", 1), "MainPID")
		return pids{h.property(unit, "MainPID"), keeper, h.script("pgrep -n -x envoy -P " + keeper)}
	}
	before := map[string]pids{}
	for _, unit := range units {
		before[unit] = look(unit)
	}
	h.hasOldLayout()
	h.whileServing("outrider", install)
	h.serves(units...)
	h.hasLayout()
	for _, unit := range units {
		after := look(unit)
		if after.agent == before[unit].agent || after.agent == "0" {
			h.t.Errorf("%s was not restarted (pid %s)", unit, after.agent)
		}
		if after.keeper != before[unit].keeper || after.envoy != before[unit].envoy {
			h.t.Errorf("%s: keeper and Envoy were %s and %s, and are %s and %s", unit,
				before[unit].keeper, before[unit].envoy, after.keeper, after.envoy)
		}
		// The program's file is the new one, not "… (deleted)".
		h.eventually("/usr/libexec/outrider/outrider-keeper", "readlink /proc/"+after.keeper+"/exe")
	}
	h.expect("outriderd "+newVersion, "outriderd --version")
}

// installedState checks the state after an installation: users and folders exist, and no process
// runs.
func (h *host) installedState() {
	h.t.Helper()
	h.expect("disabled", "systemctl is-enabled outrider.service || true")
	h.expect("inactive", "systemctl is-active outrider.service || true")
	h.expect("outrider-envoy", "id -nG outrider | tr ' ' '\\n' | grep -x outrider-envoy")
	h.expect("outrider-xds", "id -nG outrider | tr ' ' '\\n' | grep -x outrider-xds")
	h.expect("outrider-envoy outrider-xds", "id -nG outrider-envoy")
	h.expect(`640 root outrider /etc/outrider/outrider.toml
755 root root /etc/outrider/conf.d
755 root root /etc/outrider/mesh.d
1775 root root /run/outrider
2751 outrider outrider-envoy /run/outrider/envoy
1770 root outrider-envoy /run/outrider-envoy
710 root outrider /var/lib/outrider`,
		"stat -c '%a %U %G %n' /etc/outrider/outrider.toml /etc/outrider/conf.d "+
			"/etc/outrider/mesh.d /run/outrider /run/outrider/envoy /run/outrider-envoy "+
			"/var/lib/outrider")
	h.expect("Subject: A reload was refused",
		"journalctl --dump-catalog 5177ad40e7c64ae7957e589a5505718d | grep ^Subject")
	h.script("outrider config check && outrider config check /etc/outrider/outrider.toml")
	h.expect(`.TH OUTRIDERD 8 "2026-09-21" "Outrider `+oldVersion+`" "Manual of Outrider"`,
		"zcat /usr/share/man/man8/outriderd.8.gz | head -n 1")
	h.script("bash -n /usr/share/bash-completion/completions/outrider")
}
