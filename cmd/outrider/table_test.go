package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// longNames returns the backend of an agent with long names.
func longNames() *apitest.Backend {
	long := func(s string) string { return strings.Repeat(s+"-", 20) + s }
	status := someStatus()
	status.Conditions[0].Sentence = strings.Repeat("a word of a sentence ", 10)
	status.Identities = []api.Identity{{Name: long("id"), SPIFFEID: "spiffe://" + long("trust"),
		Issuer: long("issuer"), Source: "files",
		NotBefore: ago(time.Hour), NotAfter: noon.Add(time.Hour), Renewal: noon.Add(time.Minute)}}
	answers := adminAnswers()
	for path, text := range answers {
		answers[path] = strings.NewReplacer("a.example.com", long("a")+".example.com", `"web"`,
			`"`+long("web")+`"`, "no such filter", long("filter"),
			`"default"`, `"`+long("default")+`"`, "c.example.com",
			long("c")+".example.com").Replace(text)
	}
	return &apitest.Backend{StatusValue: status, AdminAnswers: answers,
		Types: []api.ResourceType{{Epoch: 2,
			Type: "type.googleapis.com/envoy.config.listener.v3.Listener", State: "refused",
			Version: long("v"), Resources: 3, Since: ago(time.Minute), Source: "embedded",
			RefusalReason: long("why")}},
		Origins: []api.MeshResourceOrigins{{Type: resource.ListenerType, Name: long("web"),
			Origins: []resource.Origin{{File: "/etc/outrider/mesh.d/" + long("file") + ".yaml",
				Line: 12}}}},
	}
}

func TestTables_Fit80Columns(t *testing.T) {
	m := newMachine(t, longNames())
	for _, command := range []string{"status", "epochs", "certs", "proxy clusters",
		"proxy listeners", "proxy routes", "proxy endpoints", "proxy secrets", "proxy status"} {
		m.width = 80
		code, out, errors := m.outrider(strings.Fields(command)...)
		if code != 0 {
			t.Errorf("%s: %d %s", command, code, errors)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s: a line has %d columns: %s", command, n, line)
			}
		}
		if command == "proxy listeners" && !strings.Contains(out, ".yaml:12\n") {
			t.Errorf("the end of a place is cut:\n%s", out)
		}
		if command == "status" {
			continue
		}
		if _, wide, errors := m.outrider(append(strings.Fields(command), "-o",
			"wide")...); strings.Contains(wide, "…") || errors != "" {
			t.Errorf("%s -o wide: %s%s", command, wide, errors)
		}
		m.width = 0
		if _, piped, _ := m.outrider(strings.Fields(command)...); strings.Contains(piped, "…") {
			t.Errorf("%s is cut where it is no terminal:\n%s", command, piped)
		}
	}
	if code, _, errors := m.outrider("epochs", "-o", "long"); code != 2 ||
		!strings.Contains(errors, `output format "long" is neither wide nor json`) {
		t.Errorf("%d %s", code, errors)
	}
	if _, out, _ := m.outrider("epochs", "-o", "json"); !strings.HasPrefix(out, "[") {
		t.Error(out)
	}
}

func TestTables_SelectedRows(t *testing.T) {
	m := newMachine(t, &apitest.Backend{StatusValue: someStatus(), AdminAnswers: adminAnswers()})
	for _, c := range []struct{ arguments, has, hasNot string }{
		{"epochs 1 0", "draining", "live"}, {"proxy clusters dns", "envoy.cluster.dns", "EDS"},
		{"proxy endpoints xds", "xds.sock", "10.0.0.1"},
		{"epochs 7", "no such epoch", "live"},
	} {
		if code, out, errors := m.outrider(strings.Fields(c.arguments)...); code != 0 ||
			!strings.Contains(out, c.has) || strings.Contains(out, c.hasNot) {
			t.Errorf("%s: %d %s%s", c.arguments, code, out, errors)
		}
	}
	if code, _, _ := m.outrider("proxy", "clusters", "dns", "--json"); code != 2 {
		t.Errorf("exit code %d", code)
	}
}

func TestEpochs_Watch(t *testing.T) {
	m := newMachine(t, &apitest.Backend{StatusValue: someStatus()})
	ctx, cancel := context.WithCancel(t.Context())
	a, shown, done := m.app(&bytes.Buffer{}, &bytes.Buffer{}), &parts.SyncBuffer{}, make(chan int)
	a.out, a.width = shown, 80
	go func() { done <- a.run(ctx, []string{"epochs", "--watch"}) }()
	const cleared = "\x1b[H\x1b[2J"
	parts.Eventually(t, time.Minute, "it is shown again",
		func() bool { return strings.Count(shown.String(), cleared+"EPOCH") >= 2 })
	cancel()
	if code := <-done; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestConfigShow_JSONIsStructured(t *testing.T) {
	m := newMachine(t, &apitest.Backend{ConfigValue: api.Config{Text: "x",
		Values: []config.Value{
			{Key: "envoy.concurrency", Text: "2"}, {Key: "envoy.drain_duration", Text: `"45s"`},
			{Key: "node.labels.app", Text: `"a"`},
			{Key: `status.probe."a/b".http`, Text: `"http://x"`},
			{Key: "capture.exclude_inbound_ports", Text: "[22]"},
			{Key: "bus.enabled", Text: "true"}}}})
	_, out, errors := m.outrider("config", "show", "--json")
	var shown struct {
		Config map[string]any `json:"config"`
		Text   string         `json:"text"`
		Values []any          `json:"values"`
	}
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatalf("%v %s%s", err, out, errors)
	}
	const want = `map[bus:map[enabled:true] capture:map[exclude_inbound_ports:[22]] envoy:map[concurrency:2 drain_duration:45s] node:map[labels:map[app:a]] status:map[probe:map[a/b:map[http:http://x]]]]`
	if got := fmt.Sprint(shown.Config); got != want || shown.Text != "x" || len(shown.Values) != 6 {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestCompletion_OfValues(t *testing.T) {
	m := newMachine(t, &apitest.Backend{StatusValue: someStatus(), AdminAnswers: adminAnswers(),
		Levels: api.LogLevels{Components: map[string]string{"http": "info", "upstream": "info"}}})
	m.write("etc/web.toml", "")
	m.write("etc/edge.toml", "")
	for _, c := range []struct {
		text []string
		want string
	}{
		{[]string{"status", "-i", ""}, "edge web"}, {[]string{"-i", "w"}, "web"},
		{[]string{"epochs", ""}, "2 1 0"}, {[]string{"epochs", "2", ""}, "1 0"},
		{[]string{"proxy", "clusters", "x"}, "xds"}, {[]string{"proxy", "endpoints", "outbound"},
			"outbound|80||a.example.com"},
		{[]string{"log-level", ""}, "agent= envoy= envoy:"},
		{[]string{"log-level", "agent="}, "agent=debug agent=info agent=warn agent=error"},
		{[]string{"log-level", "envoy:h"}, "envoy:http="}, {[]string{"log-level", "envoy:http=t"},
			"envoy:http=trace"},
		{[]string{"certs", "-o", ""}, "wide json"},
	} {
		_, out, _ := m.outrider(append([]string{"__completeNoDesc"}, c.text...)...)
		values, _, _ := strings.Cut(out, ":")
		if strings.HasPrefix(c.text[0], "proxy") || strings.HasPrefix(c.text[0], "log") {
			values = out[:strings.LastIndex(out, ":")]
		}
		if got := strings.Join(strings.Fields(values), " "); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	stopped := newMachine(t, nil)
	if code, out, _ := stopped.outrider("__completeNoDesc", "epochs", ""); code != 0 ||
		out != ":4\n" {
		t.Errorf("without an agent: %d %q", code, out)
	}
}
