package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/condition"
)

// readReport returns the files in a report by their paths, relative to the report's folder.
func readReport(t *testing.T, content []byte) map[string]string {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(compressed); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		folder, name, _ := strings.Cut(header.Name, "/")
		if !strings.HasPrefix(folder, "outrider-report") && folder != "r" {
			t.Errorf("%s is in no folder of the report's", header.Name)
		}
		files[name] = string(text)
	}
}

func TestBugReport(t *testing.T) {
	answers := adminAnswers()
	answers["config_dump?include_eds="] = `{"configs": [{"header": {"key": "authorization", "value": "hunter2"}}]}`
	answers["stats"] = "server.live: 1\n"
	backend := &apitest.Backend{
		StatusValue: someStatus(), AdminAnswers: answers,
		ConfigValue: api.Config{Text: "[tracing]\naccess_token_file = \"/etc/token\"\n"},
		ReportFiles: []api.ReportFile{{Name: "envoy-log.txt",
			Text: "request with Authorization: Bearer hunter2hunter2\n"},
			{Name: "../../escape", Text: "x"}},
	}
	m := newMachine(t, backend)
	backend.StatusValue.ConfigFiles = []string{m.dir + "/etc/outrider.toml"}
	backend.StatusValue.Epochs[0].BootstrapPath = m.dir + "/run/envoy/envoy-rev2.json"
	m.board.Publish(condition.Event{Kind: condition.KindEpochLive, Sentence: "it serves"})
	m.write("etc/outrider.toml", "[node.metadata]\nAPI_TOKEN = \"hunter2\"\n")
	m.write("etc/mesh.d/a.yaml", "kind: ServiceEntry\npassword: hunter2\n")
	m.write("run/envoy/envoy-rev2.json", `{"node": {"metadata": {"API_TOKEN": "hunter2"}}}`)
	path := filepath.Join(m.dir, "r.tar.gz")
	code, out, problems := m.outrider("bug-report", "-o", path)
	if code != 0 || !strings.Contains(out, "$DIR/r.tar.gz: ") ||
		!strings.Contains(problems, "envoy/memory.json: no epoch is live") {
		t.Fatalf("%d %s %s", code, out, problems)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := readReport(t, content)
	for name, want := range map[string]string{
		"agent/status.json": `"state": "running"`, "agent/config.json": "/etc/token",
		"agent/events.ndjson": "it serves",
		"agent/envoy-log.txt": "[redacted]", "envoy/config_dump.json": "[redacted]",
		"envoy/stats.txt":                      "server.live",
		"files" + m.dir + "/etc/outrider.toml": "API_TOKEN", "files" + m.dir +
			"/run/envoy/envoy-rev2.json": "[redacted]",
		"files" + m.dir + "/etc/mesh.d/a.yaml": "ServiceEntry", "escape": "x",
		"missing.txt": "envoy/memory.json", "versions.txt": "outrider",
		"host/proc/version": "Linux",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s: %q is not in %q", name, want, files[name])
		}
	}
	for name, text := range files {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s shows a secret: %s", name, text)
		}
		if strings.Contains(name, "..") {
			t.Errorf("%s leaves the report's folder", name)
		}
	}
	if code, _, problems := m.outrider("bug-report", "-o", path); code != 1 ||
		!strings.Contains(problems, "exists") {
		t.Errorf("a report is written over another: %d %s", code, problems)
	}
}

func TestBugReport_WithoutAgent(t *testing.T) {
	m := newMachine(t, nil)
	m.write("etc/outrider.toml", "[log]\nlevel = \"debug\"\n")
	var out, problems bytes.Buffer
	if code := m.app(&out, &problems).run(t.Context(),
		[]string{"bug-report", "-o", "-"}); code != 0 {
		t.Fatalf("%d %s", code, &problems)
	}
	files := readReport(t, out.Bytes())
	if !strings.Contains(files["files"+m.dir+"/etc/outrider.toml"], "debug") ||
		!strings.Contains(files["missing.txt"], "the agent is not running") {
		t.Errorf("%v", files["missing.txt"])
	}
	code, text, _ := m.outrider("bug-report", "-o", filepath.Join(m.dir, "again.tar.gz"), "--json")
	var summary reportSummary
	if err := json.Unmarshal([]byte(text), &summary); err != nil || code != 0 ||
		len(summary.Names) == 0 {
		t.Errorf("%d %s %v", code, text, err)
	}
}
