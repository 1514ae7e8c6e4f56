package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
)

const soundEntry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web}
spec:
  hosts: [web.test]
  resolution: STATIC
  location: MESH_EXTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}]
`

func TestMeshCheck_ComparesWithTheAgent(t *testing.T) {
	backend := &apitest.Backend{}
	m := newMachine(t, backend)
	m.write("etc/outrider.toml", "[discovery]\nfiles = [\""+m.dir+"/etc/mesh.d\"]\n")
	file := m.write("new/web.yaml", soundEntry)
	backend.Comparison = api.MeshComparison{Changes: []api.MeshChange{
		{Change: "added", Type: "Cluster", Name: "outbound|80||web.test", File: file, Line: 1,
			Object: "ServiceEntry default/web"},
		{Change: "removed", Type: "Listener", Name: "0.0.0.0_81"},
	}, Problems: []api.MeshProblem{{File: file, Line: 1, Object: "ServiceEntry default/web",
		Severity: "warning", Message: "odd"}}}

	code, out, errors := m.outrider("mesh", "check", file)
	const table = `$DIR/new/web.yaml: valid, with 1 warning
compared with what the agent serves: 1 added, 0 changed, 1 removed
CHANGE   TYPE      NAME                   FROM
added    Cluster   outbound|80||web.test  $DIR/new/web.yaml:1 ServiceEntry default/web
removed  Listener  0.0.0.0_81             -
`
	if diff := cmp.Diff(table, out); code != 0 || diff != "" || errors !=
		"warning: $DIR/new/web.yaml:1: ServiceEntry default/web: odd\n" {
		t.Errorf("%d %s-want +got:\n%s", code, errors, diff)
	}
	if code, _, _ = m.outrider("mesh", "check", m.dir+"/new"); code != 0 {
		t.Errorf("exit code %d", code)
	}
	asked := backend.CompareRequests()
	want := []api.MeshFiles{
		{Files: []api.MeshFile{{Path: file, Content: []byte(soundEntry)}}},
		{Files: []api.MeshFile{{Path: file, Content: []byte(soundEntry)}},
			CompleteFolders: []string{m.dir + "/new"}},
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	_, out, _ = m.outrider("mesh", "check", file, "--json")
	var found []map[string]any
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found) != 3 ||
		found[0]["severity"] != "warning" || found[1]["severity"] != "info" ||
		found[1]["change"] != "added" || found[1]["name"] != "outbound|80||web.test" ||
		found[1]["message"] != "Cluster outbound|80||web.test would be added" {
		t.Errorf("%v: %s", err, out)
	}

	backend.Comparison = api.MeshComparison{}
	if code, out, _ := m.outrider("mesh", "check", file); code != 0 || !strings.HasSuffix(out,
		"compared with what the agent serves: no resource would change\n") {
		t.Errorf("%d %s", code, out)
	}
	backend.Comparison.Problems = []api.MeshProblem{{File: "/etc/x.yaml", Line: 3,
		Severity: "error", Message: "the port is taken"}}
	if code, _, errors := m.outrider("mesh", "check", file); code != 1 ||
		!strings.Contains(errors, "error: /etc/x.yaml:3: the port is taken") {
		t.Errorf("an error beside the files in force: %d %s", code, errors)
	}
}

func TestMeshCheck_SaysWhyNothingIsCompared(t *testing.T) {
	const notCompared = "not compared with what the agent serves: "
	m := newMachine(t, nil)
	m.write("etc/outrider.toml", "[discovery]\nfiles = [\""+m.dir+"/etc/mesh.d\"]\n")
	file := m.write("web.yaml", soundEntry)
	if code, out, errors := m.outrider("mesh", "check", file); code != 0 ||
		out != "$DIR/web.yaml: valid\n" || errors != notCompared+"no agent runs\n" {
		t.Errorf("without an agent: %d %s %s", code, out, errors)
	}

	backend := &apitest.Backend{Err: &api.Error{Status: http.StatusForbidden,
		Message: "not authorised: no"}}
	m = newMachine(t, backend)
	m.write("etc/outrider.toml", "[discovery]\nfiles = [\""+m.dir+"/etc/mesh.d\"]\n")
	file = m.write("web.yaml", soundEntry)
	if code, out, errors := m.outrider("mesh", "check", file); code != 0 ||
		out != "$DIR/web.yaml: valid\n" || errors != notCompared+"not authorised: no\n" {
		t.Errorf("without the rights: %d %s %s", code, out, errors)
	}
	bad := m.write("bad.yaml", strings.Replace(soundEntry, "hosts", "hots", 1))
	mesh := m.write("mesh", "connectTimeout: 1s\n")
	for why, arguments := range map[string][]string{
		"the files have errors; correct them first":     {bad},
		"--mesh-config replaces the agent's MeshConfig": {file, "--mesh-config", mesh},
	} {
		_, _, errors := m.outrider(append([]string{"mesh", "check"}, arguments...)...)
		if !strings.Contains(errors, notCompared+why+"\n") {
			t.Errorf("%v: %s", arguments, errors)
		}
	}
	if asked := backend.CompareRequests(); len(asked) != 1 {
		t.Errorf("the agent was asked %d times", len(asked))
	}
}
