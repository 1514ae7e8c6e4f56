package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

func TestStatus_ExplainsFailedUnit(t *testing.T) {
	m := newMachine(t, nil)
	m.proc = m.dir // without /proc, the check does not find the Envoys of other tests
	const absent = "outrider: the agent is not running: nobody answers on " +
		"$DIR/run/outrider.sock: no such file or directory\n"
	for _, c := range []struct {
		state unitState
		want  string
	}{
		{unitState{Active: "inactive", Status: "stopped"},
			"Start it with \"systemctl start outrider\".\nNo Envoy serves.\n"},
		{unitState{Active: "inactive", Masked: true}, "outrider.service is masked; permit it with " +
			"\"systemctl unmask outrider\".\nStart it with \"systemctl start outrider\".\n" +
			"No Envoy serves.\n"},
		{unitState{Active: "activating", Status: "starting Envoy"},
			"outrider.service is starting: starting Envoy\nNo Envoy serves.\n"},
		{unitState{Active: "failed", Result: "exit-code", Exit: "78",
			Status: "a.toml:1:1: x: wrong"},
			"outrider.service failed (exit code 78): a.toml:1:1: x: wrong\n" +
				"See \"journalctl -u outrider\"; start it again with \"systemctl start " +
				"outrider\".\nNo Envoy serves.\n"},
		{unitState{Active: "failed", Result: "watchdog", Exit: "6"},
			"outrider.service failed (watchdog)\n" +
				"See \"journalctl -u outrider\"; start it again with \"systemctl start " +
				"outrider\".\nNo Envoy serves.\n"},
	} {
		m.unit = c.state
		if code, _, errors := m.outrider("status"); code != 3 || errors != absent+c.want {
			t.Errorf("%+v: %d %s", c.state, code, errors)
		}
	}
}

func TestConfigCheck_ReadsDropInsOfInstance(t *testing.T) {
	m := newMachine(t, nil)
	m.write("etc/web.toml", "")
	m.write("etc/conf.d/host.toml", "of_the_host = 1\n")
	m.write("etc/web.conf.d/web.toml", "of_web = 1\n")
	code, _, errors := m.outrider("config", "check", m.dir+"/etc/web.toml")
	if code != 1 || !strings.Contains(errors, "of_web") || strings.Contains(errors, "of_the_host") {
		t.Errorf("%d %s", code, errors)
	}
}

func TestConfigCheck(t *testing.T) {
	m := newMachine(t, nil)
	m.write("etc/outrider.toml", fmt.Sprintf("[log]\nlevel = \"debug\"\n[envoy]\nbinary = %q\n",
		parts.EnvoyPath(t)))
	m.write("etc/conf.d/a.toml", "[envoy]\nconcurrency = 2\n")
	if code, out, errors := m.outrider("config", "check"); code != 0 ||
		!strings.Contains(out, "$DIR/etc/outrider.toml: valid\n$DIR/etc/conf.d/a.toml: valid\n") {
		t.Errorf("%d %s %s", code, out, errors)
	}
	m.unit = unitState{User: "root"}
	m.write("etc/conf.d/a.toml", "[envoy]\nuser = \"root\"\n")
	if code, _, errors := m.outrider("config", "check"); code != 1 ||
		!strings.HasPrefix(errors, "$DIR/etc/conf.d/a.toml:2:1: envoy.user: ") {
		t.Errorf("the unit's configuration: %d %s", code, errors)
	}
	bad := m.write("bad.toml", "[envoy]\nconcurency = 2\n\n[log]\nlevel = \"loud\"\n")
	code, _, errors := m.outrider("config", "check", bad)
	if code != 1 || !strings.Contains(errors, "$DIR/bad.toml:2") ||
		!strings.Contains(errors, "concurrency") || !strings.Contains(errors, "$DIR/bad.toml:5") {
		t.Errorf("%d %s", code, errors)
	}
	code, out, _ := m.outrider("config", "check", bad, "--json")
	var result checkResult
	if err := json.Unmarshal([]byte(out), &result); err != nil || code != 1 ||
		len(result.Errors) != 2 {
		t.Errorf("%d %s %v", code, out, err)
	}
}

func TestMeshCheck(t *testing.T) {
	m := newMachine(t, nil)
	m.write("etc/outrider.toml", "[discovery]\nfiles = [\""+m.dir+"/etc/mesh.d\"]\n")
	m.write("etc/mesh.d/good.yaml",
		"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata:\n  name: a\nspec:\n"+
			"  hosts: [a.example.com]\n  resolution: STATIC\n  location: MESH_EXTERNAL\n"+
			"  ports:\n  - {number: 80, name: http, protocol: HTTP}\n  endpoints:\n"+
			"  - address: 127.0.0.1\n")
	for _, arguments := range []string{"mesh check", "analyze"} {
		if code, out, errors := m.outrider(strings.Fields(arguments)...); code != 0 ||
			!strings.Contains(out, "mesh.d: valid") {
			t.Errorf("%s: %d %s %s", arguments, code, out, errors)
		}
	}
	gateway := m.write("gateway.yaml",
		"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata:\n  name: a\nspec:\n"+
			"  servers:\n  - port: {number: 80, name: http, protocol: HTTP}\n    hosts: ['*']\n")
	if code, out, errors := m.outrider("mesh", "check", gateway); code != 0 ||
		out != "$DIR/gateway.yaml: valid, with 1 warning\n" {
		t.Errorf("a warning: %d %s %s", code, out, errors)
	}
	if code, out, errors := m.outrider("mesh", "check", "--strict", gateway); code != 1 ||
		!strings.Contains(errors, "warning: ") {
		t.Errorf("a warning with --strict: %d %s %s", code, out, errors)
	}
	if code, out, errors := m.outrider("mesh", "check", m.dir+"/missing"); code != 1 || out != "" ||
		errors != "outrider: cannot read $DIR/missing: no such file or directory\n" {
		t.Errorf("a path that is not there: %d %s %s", code, out, errors)
	}
	bad := m.write("bad.yaml", "apiVersion: networking.istio.io/v1\nkind: VirtualService\n"+
		"metadata:\n  name: b\nspec:\n  hosts: [b.example.com]\n  htpp: []\n")
	code, _, errors := m.outrider("mesh", "check", bad)
	if code != 1 || !strings.Contains(errors, "$DIR/bad.yaml:") ||
		!strings.Contains(errors, "htpp") {
		t.Errorf("%d %s", code, errors)
	}
	code, out, _ := m.outrider("mesh", "check", bad, "--json")
	var problems []map[string]any
	if err := json.Unmarshal([]byte(out), &problems); err != nil || code != 1 ||
		len(problems) == 0 || problems[0]["severity"] != "error" {
		t.Errorf("%d %s %v", code, out, err)
	}
	own := m.write("own.yaml", "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n"+
		"metadata:\n  name: a\nspec:\n  hosts: [a.example.com]\n  resolution: STATIC\n  ports:\n"+
		"  - {number: 15090, name: http, protocol: HTTP}\n  endpoints:\n"+
		"  - address: 127.0.0.1\n")
	if _, out, errors := m.outrider("mesh", "check", own); !strings.Contains(out+errors,
		"127.0.0.1:15090 belongs to [telemetry] prometheus_address of the agent") {
		t.Errorf("%s %s", out, errors)
	}
	config := m.write("mesh", "connectTimeout: 1h\n")
	if code, _, errors := m.outrider("mesh", "check", "--mesh-config", config); code != 1 ||
		!strings.Contains(errors, "$DIR/mesh:1: ") {
		t.Errorf("%d %s", code, errors)
	}
	m.write("etc/outrider.toml",
		"[discovery]\nfiles = [\""+m.dir+"/etc/mesh.d\"]\nmesh_config_file = \""+config+"\"\n")
	if code, _, errors := m.outrider("mesh", "check"); code != 1 ||
		!strings.Contains(errors, "$DIR/mesh:1: ") {
		t.Errorf("%d %s", code, errors)
	}
	m.write("etc/outrider.toml", "nonsense = 1\n")
	if code, _, errors := m.outrider("mesh", "check"); code != 1 ||
		!strings.Contains(errors, "specify mesh files as arguments") {
		t.Errorf("%d %s", code, errors)
	}
}
