package main_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// owner returns the user of a process.
func owner(t *testing.T, pid int) int {
	t.Helper()
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

// everyonesEnvoy copies the real Envoy to a directory that every user can read.
func everyonesEnvoy(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "envoy")
	if os.Link(parts.EnvoyPath(t), path) == nil {
		return path
	}
	if out, err := exec.Command("cp", parts.EnvoyPath(t), path).CombinedOutput(); err != nil {
		t.Fatalf("copy Envoy: %v: %s", err, out)
	}
	return path
}

// TestEnvoy_RunsAsItsUser runs Envoy as another user than the agent if the test runs as root, and
// as the same user otherwise.
func TestEnvoy_RunsAsItsUser(t *testing.T) {
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	wanted := os.Geteuid()
	if wanted == 0 {
		wanted, _ = strconv.Atoi(nobody.Uid)
	}
	r := rig.New(t, rig.Options{})
	r.SetTOML(fmt.Sprintf("[envoy]\nuser = \"nobody\"\nbinary = %q\n", everyonesEnvoy(t, r.Dir)))
	daemon := r.Start("--check")
	if exit := daemon.Wait(t, 60*time.Second); exit != 0 || strings.Contains(daemon.Output(),
		"warning") {
		t.Errorf("check: exit %d: %s", exit, daemon.Output())
	}
	r.StartReady()
	for range 2 {
		if got := owner(t, current(t, r).PID); got != wanted {
			t.Errorf("Envoy runs as %d, not %d", got, wanted)
		}
		if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
			t.Errorf("GET: %d %v", code, err)
		}
		if result := r.RunOutrider("reload"); result.ExitCode != 0 {
			t.Fatalf("reload: %s", result.Stderr)
		}
	}
	for _, pid := range r.ProcessIDs("outrider-keeper") {
		if got := owner(t, pid); got != wanted {
			t.Errorf("the keeper runs as %d, not %d", got, wanted)
		}
	}
}

// wrapped returns a wrapper script of Envoy that reports a hot-restart version, and sets
// --service-zone, by which the test recognises it.
func wrapped(t *testing.T, zone, hotRestartVersion string) string {
	return fmt.Sprintf(
		"#!/bin/sh\n[ \"$1\" = --hot-restart-version ] && { echo %s; exit; }\nexec %s \"$@\" "+
			"--service-zone %s\n", hotRestartVersion, parts.EnvoyPath(t), zone)
}

func TestReload_DetectsReplacedEnvoy(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	replace := func(text string) {
		t.Helper()
		r.WriteFile("bin/envoy", text)
		if err := os.Chmod(filepath.Join(r.Dir, "bin/envoy"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	version, err := exec.Command(parts.EnvoyPath(t), "--hot-restart-version").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	same := strings.TrimSpace(string(version))
	replace(wrapped(t, "first", same))
	r.SetTOML(fmt.Sprintf("[envoy]\nbinary = %q\n", filepath.Join(r.Dir, "bin/envoy")))
	r.StartReady()
	for i, next := range []struct{ zone, version, mode string }{
		{"second", same, "hot-restart"},
		{"third", "99.1", "side-by-side"},
	} {
		replace(wrapped(t, next.zone, next.version))
		if result := r.RunOutrider("reload", "--if-changed"); result.ExitCode != 0 {
			t.Fatalf("%s: %s", next.zone, result.Stderr)
		}
		live := current(t, r)
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", live.PID))
		if err != nil || !strings.Contains(string(line), next.zone) ||
			string(live.Mode) != next.mode ||
			live.Number != i+1 {
			t.Errorf("%s: %+v runs %q %v", next.zone, live, line, err)
		}
		if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
			t.Errorf("%s: GET: %d %v", next.zone, code, err)
		}
	}
}

func TestStop_EndsWithLastConnection(t *testing.T) {
	t.Parallel()
	r := rig.New(t,
		rig.Options{Race: true,
			TOML: "[envoy]\nexit_on_zero_active_connections = true\nminimum_drain_duration = " +
				"\"1s\"\n" +
				"maximum_drain_duration = \"10m\"\ntermination_drain_duration = \"10m\"\n"})
	daemon := r.StartReady()
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.Ports.TCP))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	echo := bufio.NewReader(connection)
	exchange := func() {
		t.Helper()
		_ = connection.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := connection.Write([]byte("a\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := echo.ReadString('\n'); err != nil {
			t.Fatalf("the connection was cut: %v", err)
		}
	}
	exchange()
	_ = daemon.Process.Signal(syscall.SIGTERM)
	rig.Eventually(t, time.Minute, "the proxy is not ready while it drains",
		func() bool { ready, _ := r.Ready(); return !ready })
	// The connection lasts longer than the minimum drain time, and the stop waits for it.
	parts.RepeatFor(1500*time.Millisecond, 100*time.Millisecond, exchange)
	_ = connection.Close()
	if exit := daemon.Wait(t, 60*time.Second); exit != 0 {
		t.Errorf("exit %d: %s", exit, daemon.Output())
	}
}

func TestStatus_Watch(t *testing.T) {
	r := rig.New(t, rig.Options{})
	r.StartReady()
	watch := exec.Command(r.Programs.Path("outrider"), "--socket", filepath.Join(r.Dir, "run",
		"outrider.sock"), "status", "--watch")
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	guard := time.AfterFunc(90*time.Second, func() { _ = watch.Process.Kill() })
	defer guard.Stop()
	lines := bufio.NewScanner(out)
	shows := func(what string) bool {
		for lines.Scan() {
			if strings.Contains(lines.Text(), what) {
				return true
			}
		}
		return false
	}
	if !shows("epoch 0") {
		t.Fatal("the first screen is missing")
	}
	if result := r.RunOutrider("reload"); result.ExitCode != 0 {
		t.Fatalf("reload: %s", result.Stderr)
	}
	if !shows("epoch 1") {
		t.Fatal("the change is not shown")
	}
	_ = watch.Process.Signal(syscall.SIGINT)
	for lines.Scan() { //nolint:revive // wait until it has exited
	}
	if err := watch.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
}

// template is a bootstrap template of a user, whose Envoy receives its resources from the agent.
const template = `{{/* as Istio's are written */}}
admin:
  address: {pipe: {path: "{{ .admin_socket }}"}}
node:
  id: "{{ .nodeID }}"
  cluster: "{{ .cluster }}"
  metadata: {{ .meta_json_str }}
dynamic_resources:
  lds_config: {ads: {}, resource_api_version: V3}
  cds_config: {ads: {}, resource_api_version: V3}
  ads_config: {api_type: {{ if .delta }}DELTA_GRPC{{ else }}GRPC{{ end }}, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: agent}}]}
static_resources:
  clusters:
  - name: agent
    connect_timeout: {{ .connect_timeout }}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: agent, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: "{{ .xds_uds_path }}"}}}}]}]}
`

func TestTemplate_ServesAndReloads(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	path := filepath.Join(r.Dir, "bootstrap.tmpl")
	r.WriteFile("bootstrap.tmpl", template)
	r.SetTOML(fmt.Sprintf("[envoy]\ntemplate_file = %q\n", path))
	daemon := r.Start("--check")
	if exit := daemon.Wait(t, 60*time.Second); exit != 0 || strings.Contains(daemon.Output(),
		"warning") {
		t.Fatalf("check: exit %d: %s", exit, daemon.Output())
	}
	r.StartReady()
	if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
		t.Errorf("GET: %d %v", code, err)
	}
	r.WriteFile("bootstrap.tmpl", template+"flags_path: /nonexistent-{{ .cluster }}\n")
	rig.Eventually(t, time.Minute, "a changed template starts an epoch",
		func() bool { return current(t, r).Number == 1 })
	if live := current(t, r); live.Mode != "hot-restart" {
		t.Errorf("%+v", live)
	}
	r.WriteFile("bootstrap.tmpl", template+"flags_path: {{ .clustr }}\n")
	if result := r.RunOutrider("reload"); result.ExitCode != 1 || !strings.Contains(result.Stderr,
		"bootstrap.tmpl:"+strconv.Itoa(strings.Count(template, "\n")+1)) {
		t.Errorf("a broken template: exit %d: %s", result.ExitCode, result.Stderr)
	}
	if code, _, err := r.GetThroughEnvoy("/hello"); err != nil || code != 200 {
		t.Errorf("GET after all that: %d %v", code, err)
	}
}
