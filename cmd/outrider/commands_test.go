package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/resource"
)

func TestTables(t *testing.T) {
	backend := &apitest.Backend{
		StatusValue: someStatus(),
		Levels: api.LogLevels{Agent: "info", Envoy: "warning",
			Components: map[string]string{"misc": "error", "http": "debug"}},
		Types: []api.ResourceType{
			{Epoch: 2, Type: "type.googleapis.com/envoy.config.listener.v3.Listener",
				State: "refused", Version: "0123456789abcdef0123", Resources: 3,
				Since: ago(time.Minute), Source: "embedded", RefusalReason: "no such filter",
				RefusedResources: []string{"web"}},
			{Epoch: 2, Type: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
				State: "accepted", Version: "v1", Resources: 10, Since: ago(time.Hour),
				Source: "embedded"},
		},
		AdminAnswers: adminAnswers(),
		Origins: []api.MeshResourceOrigins{
			{Type: resource.ClusterType, Name: "outbound|80||a.example.com",
				Origins: []resource.Origin{{File: "a.yaml", Line: 1}, {File: "b.yaml", Line: 9}}},
			{Type: resource.ListenerType, Name: "web",
				Origins: []resource.Origin{{File: "a.yaml", Line: 1}, {File: "b.yaml", Line: 9},
					{File: "c.yaml", Line: 1}, {File: "d.yaml", Line: 1}}},
			{Type: resource.ListenerType, Name: "bad",
				Origins: []resource.Origin{{File: "bad.yaml", Line: 7}}},
			{Type: resource.RouteType, Name: "web",
				Origins: []resource.Origin{{File: "other.yaml", Line: 1}}},
			{Type: resource.RouteType, Name: "web", VirtualHost: "v",
				Origins: []resource.Origin{{File: "v.yaml",
					Line: 3}}, RouteOrigins: []resource.Origin{
					{File: "v.yaml", Line: 8}, {File: "v.yaml", Line: 12}, {File: "w.yaml", Line: 5}}},
			{Type: resource.SecretType, Name: "default",
				Origins: []resource.Origin{{File: "g.yaml", Line: 3}}},
		},
		DiffValue: api.ConfigDiff{Changes: []api.Change{{Key: "envoy.concurrency", Old: "0",
			New: "2", Effect: "epoch"}, {Key: "log.level", Old: `"info"`, New: `"debug"`,
			Effect: "live"}, {Key: "node.labels.app", New: `"x"`, Effect: "epoch"}}},
		ConfigValue: api.Config{Text: "[envoy]\nconcurrency = 2 # outrider.toml:3\n"},
	}
	m := newMachine(t, backend)
	for _, test := range []struct{ golden, arguments string }{
		{"status.txt", "status"}, {"epochs.txt", "epochs"}, {"log-level.txt", "log-level"},
		{"proxy-status.txt", "proxy status"},
		{"proxy-status.txt", "proxy-status"}, {"proxy-status.txt", "ps"},
		{"proxy-status.txt", "pc status"},
		{"clusters.txt", "proxy clusters"}, {"clusters.txt", "proxy-config cluster"},
		{"clusters.txt", "pc c"},
		{"listeners.txt", "proxy listeners"}, {"routes.txt", "proxy routes"},
		{"endpoints.txt", "proxy endpoints"}, {"endpoints.txt", "pc ep"},
		{"secrets.txt", "proxy secrets"}, {"bootstrap.txt", "proxy bootstrap"},
		{"config-diff.txt", "config diff"}, {"config-show.txt", "config show"},
		{"certs-none.txt", "certs"},
	} {
		code, out, errors := m.outrider(strings.Fields(test.arguments)...)
		if code != 0 || errors != "" {
			t.Errorf("%s: exit code %d: %s", test.arguments, code, errors)
		}
		golden(t, test.golden, out)
	}
	m.colour = true
	_, out, _ := m.outrider("status")
	golden(t, "status.colour.txt", out)
}

func TestCerts(t *testing.T) {
	status := someStatus()
	status.Identities = []api.Identity{
		{Name: "default", SPIFFEID: "spiffe://cluster.local/ns/default/sa/web", Issuer: "CN=root",
			Source: "files", NotBefore: ago(6 * time.Hour), NotAfter: noon.Add(18 * time.Hour),
			Renewal: noon.Add(6 * time.Hour)},
		{Name: "ROOTCA", Subject: "CN=root", Source: "files", NotBefore: ago(10 * time.Hour),
			NotAfter: ago(time.Hour)},
		{Name: "late", SPIFFEID: "spiffe://cluster.local/ns/default/sa/web", Issuer: "CN=root",
			Source: "istiod", NotBefore: ago(6 * time.Hour), NotAfter: noon.Add(time.Hour),
			Renewal: ago(time.Hour), Problem: "/etc/token: the token expired"},
		{Name: "kubernetes://shop", Problem: "/etc/shop/tls.crt: no such file"},
		{Name: "file-cert:/etc/tls/www.crt~/etc/tls/www.key", Source: "files", Issuer: "CN=ca",
			Names: []string{"www.example.com", "example.com"}, File: "/etc/tls/www.crt",
			NotBefore: ago(100 * 24 * time.Hour), NotAfter: ago(10 * 24 * time.Hour),
			PresentedBy: []string{"/etc/outrider/mesh.d/www.yaml:12 Gateway default/www"}},
		{Name: "file-cert:/etc/tls/old.crt~/etc/tls/old.key", Source: "files", Issuer: "CN=ca",
			Subject: "CN=old", File: "/etc/tls/old.crt", NotBefore: ago(82 * 24 * time.Hour),
			NotAfter: noon.Add(8 * 24 * time.Hour), PresentedBy: []string{"a.yaml:1 Gateway a/b"}},
		{Name: "kubernetes://api", Source: "files", Issuer: "CN=ca", Subject: "CN=api",
			File: "/etc/outrider/credentials/api/tls.crt", NotBefore: ago(30 * 24 * time.Hour),
			NotAfter: noon.Add(60 * 24 * time.Hour)},
	}
	m := newMachine(t, &apitest.Backend{StatusValue: status})
	_, out, _ := m.outrider("certs")
	golden(t, "certs.txt", out)
	_, out, _ = m.outrider("status")
	golden(t, "status.certificates.txt", out)
}

func TestReload(t *testing.T) {
	changes := []api.Change{{Key: "envoy.concurrency", Old: "0", New: "2", Effect: "epoch"}}
	tests := []struct {
		name        string
		result      api.ReloadResult
		err         error
		code        int
		out, errors string
	}{
		{name: "a new epoch",
			result: api.ReloadResult{Outcome: api.OutcomeRestarted, PreviousEpoch: number(1),
				Epoch: number(2), StartMode: "hot-restart", Changes: changes,
				ChangedFiles: []string{"/etc/cert.pem"}, Duration: 180 * time.Millisecond,
				KeysPendingRestart: []string{"paths.state_dir"}},
			out: "envoy.concurrency: 0 → 2 (new epoch)\n/etc/cert.pem has changed\n" +
				"epoch 1 → 2 (hot-restart, 0.18 s)\n" +
				"takes effect at the next start of the agent: paths.state_dir\n"},
		{name: "on request",
			result: api.ReloadResult{Outcome: api.OutcomeRestarted, PreviousEpoch: number(1),
				Epoch: number(2), StartMode: "hot-restart", Duration: 180 * time.Millisecond,
				StartedUnneededEpoch: true, Changes: []api.Change{
					{Key: "log.level", Old: "info", New: "debug", Effect: "live"}}},
			out: "log.level: info → debug (applied in place)\n" +
				"epoch 1 → 2 (hot-restart, 0.18 s, on request: no change needs it)\n"},
		{name: "in place", result: api.ReloadResult{Outcome: api.OutcomeApplied, Epoch: number(1),
			Changes: []api.Change{{Key: "log.level", Old: "info", New: "debug", Effect: "live"}}},
			out: "log.level: info → debug (applied in place)\n" +
				"applied in place; epoch 1 continues serving\n"},
		{name: "a newer one", result: api.ReloadResult{Outcome: api.OutcomeUnchanged,
			Epoch: number(1), Superseded: true},
			out: "nothing changed; epoch 1 continues serving\n" +
				"a newer configuration has taken effect meanwhile\n"},
		{name: "nothing", result: api.ReloadResult{Outcome: api.OutcomeUnchanged, Epoch: number(1)},
			out: "nothing changed; epoch 1 continues serving\n"},
		{name: "refused", result: api.ReloadResult{Outcome: api.OutcomeRefused, Epoch: number(1),
			Reasons: []string{"a.toml:1:2: x: wrong", "b.toml:3:4: y: wrong\nand more"}}, code: 1,
			errors: "outrider: reload refused; epoch 1 continues serving\n" +
				"  a.toml:1:2: x: wrong\n  b.toml:3:4: y: wrong\n  and more\n"},
		{name: "an error", err: api.NewRefusal("the agent is stopping"), code: 1,
			errors: "outrider: the agent is stopping\n"},
		{name: "not authorised", err: &api.Error{Status: 403, Message: "not authorised: no"},
			code: 1, errors: "outrider: not authorised: no\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			backend := &apitest.Backend{ReloadValue: test.result, Err: test.err}
			code, out, errors := newMachine(t, backend).outrider("reload", "--if-changed")
			if code != test.code {
				t.Errorf("exit code %d", code)
			}
			if diff := cmp.Diff(test.out, out); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.errors, errors); diff != "" {
				t.Error(diff)
			}
			if reloads := backend.ReloadRequests(); len(reloads) != 1 || !reloads[0].IfChanged {
				t.Errorf("asked for %+v", reloads)
			}
		})
	}
}

func TestExitCodes(t *testing.T) {
	running := newMachine(t, &apitest.Backend{StatusValue: someStatus()})
	stopped := newMachine(t, nil)
	saysNo := newMachine(t, &apitest.Backend{Err: api.NewRefusal("no epoch is live")})
	forbids := newMachine(t, &apitest.Backend{Err: &api.Error{Status: 403,
		Message: "not authorised"}})
	tests := []struct {
		machine   *machine
		arguments string
		code      int
		says      string
	}{
		{running, "status", 0, ""},
		{running, "--help", 0, ""},
		{running, "version", 0, ""},
		{stopped, "version", 0, ""},
		{running, "completion bash", 0, ""},
		{stopped, "config defaults", 0, ""},
		{saysNo, "status", 1, "no epoch is live"},
		{saysNo, "undrain", 1, "no epoch is live"},
		{running, "proxy clusters", 1, "no epoch is live"},
		{running, "", 2, ""},
		{running, "config", 2, ""},
		{running, "statsu", 2, `did you mean "status"`},
		{running, "config shwo", 2, `did you mean "show"`},
		{running, "status extra", 2, ""},
		{running, "status --what", 2, "--what"},
		{running, "wait --timeout soon", 2, "soon"},
		{running, "wait --timeout -1s", 2, "negative"},
		{running, "log-level agent", 2, "LOGGER=LEVEL"},
		{running, "log-level other=debug", 2, "unknown logger"},
		{running, "completion tcsh", 2, "tcsh"},
		{running, "-i ../x status", 2, "not a valid instance name"},
		{stopped, "status", 3, "$DIR/run/outrider.sock"},
		{running, "-i other status", 3, "$DIR/run/other/outrider.sock"},
		{stopped, "reload", 3, "not running"},
		{stopped, "status", 3, "Start it with \"systemctl start outrider\".\n"},
		{running, "-i other status", 3, "Start it with \"systemctl start outrider@other\".\n"},
		{stopped, "wait --timeout 2s", 3, "not running"},
		{forbids, "status", 4, "not authorised"},
	}
	for _, test := range tests {
		code, _, errors := test.machine.outrider(strings.Fields(test.arguments)...)
		if code != test.code || !strings.Contains(errors, test.says) {
			t.Errorf("outrider %s: exit code %d, want %d: %s", test.arguments, code, test.code,
				errors)
		}
	}
}

func TestDrainAndUndrain(t *testing.T) {
	drained := 3
	m := newMachine(t, &apitest.Backend{RemainingConnections: []uint64{3, 1, 0},
		UndrainValue: api.UndrainResult{PreviousEpoch: &drained, Epoch: 4, StartMode: "hot-restart",
			Duration: 150 * time.Millisecond}})
	for _, test := range []struct{ arguments, out string }{
		{"drain", "draining; 3 client connections are left\n"},
		{"drain --wait", "draining; no client connection is left\n"},
		{"undrain", "no longer draining; epoch 3 → 4 (hot-restart, 0.15 s)\n"},
	} {
		if code, out, errors := m.outrider(strings.Fields(test.arguments)...); code != 0 ||
			out != test.out {
			t.Errorf("%s: %d %q %s", test.arguments, code, out, errors)
		}
	}
}

func TestDrain_UncountedConnections(t *testing.T) {
	code, out, errors := newMachine(t,
		&apitest.Backend{UncountedReason: "epoch 0 does not say"}).outrider("drain")
	if code != 0 || out != "draining; epoch 0 does not say\n" {
		t.Errorf("%d %q %s", code, out, errors)
	}
}

func TestWait(t *testing.T) {
	if code, out, _ := newMachine(t, &apitest.Backend{}).outrider("wait"); code != 0 ||
		out != "ready\n" {
		t.Errorf("%d %q", code, out)
	}
	m := newMachine(t, &apitest.Backend{NotReadyReason: "epoch 0 is starting"})
	const enough = "3s" // suffices for one response of the agent, even on a busy machine
	told := make(chan string, 1)
	go func() {
		code, _, errors := m.outrider("wait", "--timeout", enough)
		told <- fmt.Sprint(code, " ", errors)
	}()
	code, out, _ := m.outrider("wait", "--timeout", enough, "--json")
	if got := <-told; got != "1 outrider: the proxy is not ready: epoch 0 is starting\n" {
		t.Error(got)
	}
	var result api.WaitResult
	if err := json.Unmarshal([]byte(out), &result); err != nil || code != 1 || result.Ready ||
		result.Reason == "" {
		t.Errorf("%d %q %v", code, out, err)
	}
}

// TestWait_EndsBetweenTwoTries: "wait" reports that the agent does not run, even if its time-out
// expires before the first request or between two requests.
func TestWait_EndsBetweenTwoTries(t *testing.T) {
	m := newMachine(t, nil)
	var all sync.WaitGroup
	for more := range 60 {
		all.Go(func() {
			timeout := time.Duration(1)
			if more > 0 {
				timeout = pollInterval + time.Duration(more)*50*time.Microsecond
			}
			if code, _, errors := m.outrider("wait", "--timeout",
				timeout.String()); code != api.ExitNotRunning {
				t.Errorf("%v: %d %s", timeout, code, errors)
			}
		})
	}
	all.Wait()
}

func TestWait_AgentStartsLater(t *testing.T) {
	m := newMachine(t, nil)
	done := make(chan string, 1)
	go func() {
		code, out, errors := m.outrider("wait")
		if code != 0 {
			out = errors
		}
		done <- out
	}()
	apitest.Serve(t, m.dir+"/run", &apitest.Backend{}, m.board)
	select {
	case out := <-done:
		if out != "ready\n" {
			t.Error(out)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for ever")
	}
}

func TestLogLevel_Set(t *testing.T) {
	m := newMachine(t, &apitest.Backend{Levels: api.LogLevels{Agent: "info", Envoy: "warning"}})
	code, out, errors := m.outrider("log-level", "agent=debug", "envoy:http=trace")
	if code != 0 {
		t.Fatal(errors)
	}
	if want := "LOGGER      LEVEL\nagent       debug\nenvoy       warning\nenvoy:http  trace\n"; out != want {
		t.Errorf("%s", out)
	}
}

func TestEvents(t *testing.T) {
	m := newMachine(t, &apitest.Backend{})
	for i := range 12 {
		m.board.Publish(condition.Event{Kind: condition.KindEpochLive, Epoch: number(i),
			Sentence: "it serves"})
	}
	code, out, _ := m.outrider("events", "--no-follow", "-n", "2")
	if code != 0 || strings.Count(out, "\n") != 2 ||
		!strings.Contains(out, "epoch-live  epoch 11: it serves") {
		t.Errorf("%d %s", code, out)
	}
	_, out, _ = m.outrider("events", "--no-follow", "--json", "-n", "100")
	for line := range strings.Lines(out) {
		var event condition.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil ||
			event.Kind != condition.KindEpochLive {
			t.Errorf("%s: %v", line, err)
		}
	}
	if strings.Count(out, "\n") != 12 {
		t.Error(out)
	}
}

func TestConfigDiff_Refused(t *testing.T) {
	m := newMachine(t,
		&apitest.Backend{DiffValue: api.ConfigDiff{Errors: []string{"a.toml:1:1: x: wrong"}}})
	if code, _, errors := m.outrider("config", "diff"); code != 1 ||
		errors != "a.toml:1:1: x: wrong\n" {
		t.Errorf("%d %s", code, errors)
	}
}
