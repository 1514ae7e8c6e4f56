package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// commandPaths returns the command lines of all runnable commands, without "outrider".
func commandPaths(command *cobra.Command) []string {
	children := shown(command)
	if len(children) == 0 {
		return []string{strings.TrimPrefix(command.CommandPath(), "outrider ")}
	}
	var paths []string
	for _, child := range children {
		paths = append(paths, commandPaths(child)...)
	}
	return paths
}

// TestJSON_EveryCommand checks that each command prints only JSON with --json. Exceptions are the
// command that prints a script, and join, which needs a server and has its test in cmd/outriderd.
func TestJSON_EveryCommand(t *testing.T) {
	backend := &apitest.Backend{StatusValue: someStatus(), AdminAnswers: adminAnswers(),
		Explanation: api.MeshExplanation{
			MeshExplainAnswer: api.MeshExplainAnswer{Outcome: "forwarded"}}}
	backend.StatusValue.PID = os.Getpid()
	m := newMachine(t, backend)
	backend.StatusValue.ConfigFiles = []string{filepath.Join(m.dir, "etc/outrider.toml")}
	m.board.Publish(condition.Event{Kind: condition.KindEpochLive, Sentence: "it serves"})
	m.write("etc/outrider.toml", fmt.Sprintf("envoy.binary = %q\n", parts.EnvoyPath(t)))
	noJSON := map[string]bool{"completion": true, "join": true}
	m.install("1.2.3")
	arguments := map[string][]string{
		"envoy install": m.installArguments("1.2.4"), "envoy use": {"1.2.3"},
		"example show": {"canary"}, "capture explain": {"192.0.2.1:80"},
		"events": {"--no-follow"}, "import istio": {vmFiles}, "mesh explain": {"a.test"},
		"bug-report": {"-o", filepath.Join(m.dir, "report.tar.gz")},
	}
	for _, path := range commandPaths(newApp(os.Stdin, os.Stdout, os.Stderr).root()) {
		if noJSON[path] {
			continue
		}
		t.Run(path, func(t *testing.T) {
			code, out, problems := m.outrider(append(append(strings.Fields(path),
				arguments[path]...), "--json")...)
			if code != 0 {
				t.Errorf("exit code %d: %s", code, problems)
			}
			decoder := json.NewDecoder(strings.NewReader(out))
			values := 0
			for ; ; values++ {
				var value any
				if err := decoder.Decode(&value); errors.Is(err, io.EOF) {
					break
				} else if err != nil || value == nil {
					t.Fatalf("%v is no answer (%v): %s", value, err, out)
				}
			}
			if values == 0 {
				t.Error("it prints nothing")
			}
		})
	}
}

func TestJSON_ConfigDefaults(t *testing.T) {
	m := newMachine(t, nil)
	code, out, _ := m.outrider("config", "defaults", "--json")
	var said api.Config
	if err := json.Unmarshal([]byte(out), &said); err != nil || code != 0 {
		t.Fatalf("%d %s %v", code, out, err)
	}
	if _, file, _ := m.outrider("config", "defaults"); said.Text != file {
		t.Errorf("the text is not the file:\n%s", cmp.Diff(file, said.Text))
	}
	values := map[string]string{}
	for _, value := range said.Values {
		values[value.Key] = value.Text
		if value.Source != "default" {
			t.Errorf("%s comes from %s", value.Key, value.Source)
		}
	}
	for key, want := range map[string]string{"envoy.drain_duration": `"45s"`,
		"status.ready_port": "15021", "sds.socket": `""`, "capture.exclude_inbound_ports": "[22]"} {
		if values[key] != want {
			t.Errorf("%s is %s, not %s", key, values[key], want)
		}
	}
}

// TestJSON_Errors checks that, with --json, errors are JSON objects on standard error.
func TestJSON_Errors(t *testing.T) {
	refusing := &apitest.Backend{Err: api.NewRefusal("the agent is stopping")}
	for _, test := range []struct {
		backend *apitest.Backend
		command string
		code    int
		says    string
	}{
		{refusing, "reload --json", api.ExitRefused, "the agent is stopping"},
		{nil, "status --json", api.ExitNotRunning, "not running"},
		{nil, "status --json superfluous", api.ExitUsage, "superfluous"},
	} {
		code, out, errors := newMachine(t, test.backend).outrider(strings.Fields(test.command)...)
		var told struct {
			Error string `json:"error"`
			Code  int    `json:"exit_code"`
		}
		if err := json.Unmarshal([]byte(errors), &told); err != nil || out != "" {
			t.Errorf("%s: %v: %q %q", test.command, err, out, errors)
		}
		if code != test.code || told.Code != code || !strings.Contains(told.Error, test.says) {
			t.Errorf("%s: exit code %d: %s", test.command, code, errors)
		}
	}
}
