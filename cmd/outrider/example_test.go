package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/packaging/examples"
)

func TestExample_MatchesPackage(t *testing.T) {
	m := newMachine(t, nil)
	code, list, _ := m.outrider("example", "list")
	if code != api.ExitDone {
		t.Errorf("list: exit %d", code)
	}
	for _, example := range examples.AllExamples() {
		name, file := example.Name, example.Files[0].Path
		if !strings.Contains(list, "\n  "+name+" ") {
			t.Errorf("%s is not listed:\n%s", name, list)
		}
		text, err := os.ReadFile(filepath.Join("../../packaging/examples", name, file))
		if err != nil {
			t.Fatal(err)
		}
		code, all, _ := m.outrider("example", "show", name)
		first := "==> /etc/outrider/" + file + " <==\n" + string(text)
		if code != api.ExitDone || !strings.HasPrefix(all, first) {
			t.Errorf("show %s: exit %d:\n%s", name, code, all)
		}
		code, one, _ := m.outrider("example", "show", name, file)
		if code != api.ExitDone || one != string(text) {
			t.Errorf("show %s FILE: exit %d:\n%s", name, code, one)
		}
	}
	for _, group := range examples.Groups {
		if !strings.Contains("\n"+list, "\n"+group.Name+": "+group.Summary+"\n") {
			t.Errorf("no heading of %s:\n%s", group.Name, list)
		}
	}
	for line := range strings.Lines(list) {
		if len(line) > 81 {
			t.Errorf("more than 80 columns: %s", line)
		}
	}
	_, text, _ := m.outrider("example", "list", "--json")
	var listed []examples.Example
	if err := json.Unmarshal([]byte(text), &listed); err != nil || len(listed) != len(examples.AllExamples()) ||
		listed[0].Group != "edge" {
		t.Errorf("--json: %v, %d examples: %s", err, len(listed), text)
	}
}

func TestExample_UnknownName(t *testing.T) {
	m := newMachine(t, nil)
	for want, arguments := range map[string][]string{
		`no example "canry"; there are: hello, reverse-proxy, certbot, two-hosts,`: {"example", "show", "canry"},
		`the example canary has no file "conf.d/x"`: {"example", "show", "canary",
			"conf.d/x"},
	} {
		code, out, errors := m.outrider(arguments...)
		if code != api.ExitUsage || !strings.Contains(errors, want) || out != "" {
			t.Errorf("%q: exit %d: %s%s", arguments, code, out, errors)
		}
	}
}
