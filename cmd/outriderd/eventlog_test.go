package main_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// TestLog_NamesMeshProblemsAndChanges changes a mesh file. The log contains each change and each
// problem once, with its position. While a problem exists, the status lists it, and a reload
// mentions it.
func TestLog_NamesMeshProblemsAndChanges(t *testing.T) {
	r := rig.New(t, rig.Options{Race: true})
	daemon := r.StartReady()
	logs := func(what string) {
		t.Helper()
		rig.Eventually(t, time.Minute, "the log has "+what, func() bool {
			return strings.Contains(daemon.Output(), what)
		})
	}
	const service = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " +
		"db}\n" +
		"spec: {hosts: [db.example], resolution: STATIC,\n" +
		"  endpoints: [{address: 127.0.0.1}], ports: [{number: 80, name: http, protocol: HTTP}]}\n"
	r.WriteFile("mesh.d/db.yaml", service)
	logs("mesh object added")

	r.WriteFile("mesh.d/db.yaml", strings.Replace(service, "number: 80", "number: 80800", 1))
	logs("db.yaml:5: ServiceEntry default/db: spec.ports[0].number: ")
	var status api.Status
	r.RunOutriderJSON(&status, "status")
	if len(status.Problems) == 0 || status.Problems[0].Line != 5 ||
		status.Problems[0].Severity != "error" {
		t.Errorf("status lists %+v", status.Problems)
	}
	if reload := r.RunOutrider("reload"); reload.ExitCode != 0 || !strings.Contains(reload.Stderr,
		"db.yaml:5") {
		t.Errorf("a reload beside a broken mesh file: %+v", reload)
	}

	r.WriteFile("mesh.d/db.yaml", strings.Replace(service, "number: 80", "number: 81", 1))
	logs("mesh object changed")
	for _, line := range []string{"mesh object added", "mesh object changed",
		"db.yaml:5: ServiceEntry"} {
		if n := strings.Count(daemon.Output(), line); n != 1 {
			t.Errorf("%q is logged %d times:\n%s", line, n, daemon.Output())
		}
	}
}

// TestLog_NamesConditions occupies the port of the status server: the log contains the condition
// when it begins and when it ends.
func TestLog_NamesConditions(t *testing.T) {
	r := rig.New(t, rig.Options{Race: true})
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	r.SetTOML("[status]\naddress = \"" + taken.Addr().String() + "\"\n")
	daemon := r.Start()
	rig.Eventually(t, time.Minute, "the log has the condition", func() bool {
		return strings.Contains(daemon.Output(), `"status-address-unavailable"`)
	})
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "the log has its end", func() bool {
		return strings.Contains(daemon.Output(), "no longer: ")
	})
}

// TestLog_ReloadIsThreeLines: a reload causes three log lines until the old epoch has exited.
func TestLog_ReloadIsThreeLines(t *testing.T) {
	const toml = "[log]\nlevel = \"info\"\n[envoy]\ndrain_duration = \"1s\"\n" +
		"parent_shutdown_duration = \"2s\"\n"
	r := rig.New(t, rig.Options{Race: true, TOML: toml})
	daemon := r.StartReady()
	exited := func(epochs int) {
		t.Helper()
		rig.Eventually(t, time.Minute, "the old epoch has exited", func() bool {
			return strings.Count(daemon.Output(), `"event":"epoch-exited"`) == epochs
		})
	}
	if strings.Contains(daemon.Output(), `"msg":"reload"`) {
		t.Errorf("a start logs a reload:\n%s", daemon.Output())
	}
	before := len(daemon.Output())
	if reload := r.RunOutrider("reload"); reload.ExitCode != 0 {
		t.Fatalf("reload: %s", reload.Stderr)
	}
	exited(1)
	if log := daemon.Output()[before:]; strings.Count(log, "\n") != 3 ||
		!strings.Contains(log, "outrider reload") {
		t.Errorf("a reload logs:\n%s", log)
	}

	t.Setenv("MAINPID", "1")
	t.Setenv("INVOCATION_ID", "0123456789abcdef0123456789abcdef")
	before = len(daemon.Output())
	if reload := r.RunOutrider("reload"); reload.ExitCode != 0 || reload.Stdout != "" {
		t.Fatalf("systemctl reload: %+v", reload)
	}
	exited(2)
	if log := daemon.Output()[before:]; strings.Count(log, "\n") != 3 ||
		!strings.Contains(log, "systemctl reload") {
		t.Errorf("systemctl reload logs:\n%s", log)
	}

	r.SetTOML(toml + "concurrency = \"a\"\n")
	if reload := r.RunOutrider("reload"); reload.ExitCode != 1 {
		t.Fatalf("a broken configuration: %+v", reload)
	}
	if log := daemon.Output(); !strings.Contains(log, `reload refused`) ||
		strings.Contains(log, "\\\\") {
		t.Errorf("a refused reload logs:\n%s", log)
	}
}
