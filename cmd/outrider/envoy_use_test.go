package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/cmd/outrider/envoys"
	"outrider.org/outrider/scripts/parts"
)

// install installs a script that reports a version of Envoy, with `outrider envoy install --file`.
func (m *machine) install(version string) (out string) {
	m.t.Helper()
	arguments := append([]string{"envoy", "install"}, m.installArguments(version)...)
	code, out, errors := m.outrider(arguments...)
	if code != api.ExitDone {
		m.t.Fatalf("install: exit %d: %s", code, errors)
	}
	return out
}

// installArguments writes a script that reports a version of Envoy. It returns the arguments of
// `outrider envoy install` for the script.
func (m *machine) installArguments(version string) []string {
	m.t.Helper()
	text := "#!/bin/sh\ncase $1 in\n" +
		"--version) echo version: abc/" + version + "/Clean/RELEASE/BoringSSL ;;\n" +
		"--hot-restart-version) echo 11.104 ;;\nesac\n"
	path := m.write("envoy-"+version, text)
	hash := sha256.Sum256([]byte(text))
	return []string{"--file", path, "--sha256", hex.EncodeToString(hash[:])}
}

func (m *machine) selected() string {
	m.t.Helper()
	selected, err := envoys.Store{Link: filepath.Join(m.dir, "lib", "envoy")}.Selected()
	if err != nil {
		m.t.Fatal(err)
	}
	return selected
}

func TestEnvoyInstall_SelectsOnlyTheFirst(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no Envoy in $PATH
	m := newMachine(t, nil)
	out := m.install("1.2.3")
	if m.selected() != "1.2.3" || !strings.Contains(out, "from their next start on") {
		t.Errorf("the first: %q is selected: %s", m.selected(), out)
	}
	out = m.install("1.2.4")
	if m.selected() != "1.2.3" || !strings.Contains(out, "to run it: outrider envoy use 1.2.4\n") {
		t.Errorf("the second: %q is selected: %s", m.selected(), out)
	}
}

// TestEnvoyInstall_SelectsWhatTheServiceWouldNotFind: an installation selects the installed Envoy
// unless the agent's unit finds another one. An Envoy that only the caller's $PATH finds does not
// count.
func TestEnvoyInstall_SelectsWhatTheServiceWouldNotFind(t *testing.T) {
	private, public := t.TempDir(), parts.ShortDir(t)
	for _, folder := range []string{private, public} {
		if err := os.WriteFile(filepath.Join(folder, "envoy"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for folder, mode := range map[string]os.FileMode{private: 0o700, public: 0o755} {
		if err := os.Chmod(folder, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		caller string
		unit   unitState
		want   string
	}{
		"in the caller's PATH alone": {public, unitState{}, "1.2.3"},
		"in the service's PATH": {"/nonesuch", unitState{User: "nobody",
			Path: public}, ""},
		"where the service's user may not look": {"/nonesuch", unitState{User: "nobody",
			Path: private}, "1.2.3"},
		"where the unit sees nothing": {"/nonesuch", unitState{User: "nobody",
			Path: public, Hidden: []string{public + " (ProtectHome=yes)"}}, "1.2.3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", c.caller)
			m := newMachine(t, nil)
			m.unit = c.unit
			if m.install("1.2.3"); m.selected() != c.want {
				t.Errorf("%q is selected, want %q", m.selected(), c.want)
			}
		})
	}
}

func TestEnvoyUse_WithoutAgent(t *testing.T) {
	m := newMachine(t, nil)
	m.install("1.2.3")
	code, out, errors := m.outrider("envoy", "use", "1.2.3")
	want := "$DIR/lib/envoy → envoy-1.2.3/envoy; no agent runs: the next start uses it\n"
	if code != api.ExitDone || out != want || errors != "" {
		t.Errorf("exit %d: %s%s", code, out, errors)
	}
	code, out, errors = m.outrider("envoy", "use", "1.2.9")
	if code != api.ExitRefused || out != "" ||
		!strings.Contains(errors, `run "outrider envoy install 1.2.9"`) {
		t.Errorf("not installed: exit %d: %s%s", code, out, errors)
	}
	if m.selected() != "1.2.3" {
		t.Errorf("%q is selected", m.selected())
	}
}

func TestEnvoyUse_ReloadsAgents(t *testing.T) {
	backend := &apitest.Backend{ReloadValue: api.ReloadResult{
		Outcome: api.OutcomeRestarted, PreviousEpoch: number(3), Epoch: number(4), StartMode: "hot-restart"}}
	m := newMachine(t, backend)
	backend.StatusValue.Envoy.Path = filepath.Join(m.dir, "lib/envoy-1.2.3/envoy")
	m.install("1.2.3")
	code, out, errors := m.outrider("envoy", "use", "1.2.3")
	want := "epoch 3 → 4 (hot-restart)\n$DIR/lib/envoy → envoy-1.2.3/envoy\n"
	if code != api.ExitDone || out != want || errors != "" {
		t.Errorf("exit %d: %s%s", code, out, errors)
	}
	backend.ReloadValue = api.ReloadResult{Outcome: "unchanged", Epoch: number(4)}
	backend.StatusValue.Envoy.Path = "/opt/envoy"
	_, out, _ = m.outrider("envoy", "use", "1.2.3")
	const note = "\nthe agent runs /opt/envoy: its configuration names it ([envoy] binary)\n"
	if !strings.Contains(out, note) {
		t.Errorf("with an Envoy in the configuration: %s", out)
	}
	if reloads := backend.ReloadRequests(); len(reloads) != 2 || !reloads[0].IfChanged {
		t.Errorf("reloads: %+v", reloads)
	}
}

// TestEnvoyUse_RestoresSelectionOnRefusal: if an agent refuses the reload, the command restores the
// selection, and reloads the agents that have already changed.
func TestEnvoyUse_RestoresSelectionOnRefusal(t *testing.T) {
	first := &apitest.Backend{ReloadValue: api.ReloadResult{
		Outcome: api.OutcomeRestarted, PreviousEpoch: number(3), Epoch: number(4), StartMode: "hot-restart"}}
	m := newMachine(t, first)
	second := &apitest.Backend{ReloadValue: api.ReloadResult{Outcome: api.OutcomeRefused,
		Epoch: number(7), Reasons: []string{"Envoy does not accept the bootstrap"}}}
	if err := os.Mkdir(filepath.Join(m.dir, "run", "edge"), 0o755); err != nil {
		t.Fatal(err)
	}
	apitest.Serve(t, filepath.Join(m.dir, "run", "edge"), second, m.board)
	m.install("1.2.3")
	m.install("1.2.4")
	for _, before := range []string{"", "1.2.3"} {
		if err := (envoys.Store{Folder: filepath.Join(m.dir, "lib"),
			Link: filepath.Join(m.dir, "lib", "envoy")}).Select(before); err != nil {
			t.Fatal(err)
		}
		code, out, errors := m.outrider("envoy", "use", "1.2.4")
		if code != api.ExitRefused || m.selected() != before {
			t.Errorf("exit %d, %q is selected and not %q: %s%s", code, m.selected(), before, out,
				errors)
		}
		for _, want := range []string{"epoch 7 ", "\n  Envoy does not accept the bootstrap\n",
			"Envoy 1.2.4 is not used: ", strings.TrimSpace("Envoy " + before)} {
			if !strings.Contains(errors, want) {
				t.Errorf("%q is not in: %s", want, errors)
			}
		}
	}
	if n := len(first.ReloadRequests()); n != 4 {
		t.Errorf("the agent that changed was reloaded %d times, want there and back twice", n)
	}
	if n := len(second.ReloadRequests()); n != 2 {
		t.Errorf("the agent that refused was reloaded %d times, want 2", n)
	}
}

func TestEnvoyList(t *testing.T) {
	backend := &apitest.Backend{}
	m := newMachine(t, backend)
	backend.StatusValue.Envoy = api.EnvoyStatus{
		Version: "1.2.4", Path: filepath.Join(m.dir, "lib/envoy-1.2.4/envoy")}
	m.install("1.2.3")
	m.install("1.2.4")
	if code, _, errors := m.outrider("envoy", "use", "1.2.3"); code != api.ExitDone {
		t.Fatal(errors)
	}
	_, out, _ := m.outrider("envoy", "list", "--offline")
	want := `VERSION  STATE      PATH
1.2.4    running    $DIR/lib/envoy-1.2.4/envoy
1.2.3    selected   $DIR/lib/envoy-1.2.3/envoy
1.40.0   available  -
1.39.3   available  -
`
	if out != want {
		t.Errorf("got:\n%s", out)
	}
	backend.StatusValue.Envoy = api.EnvoyStatus{Version: "1.5.0", Path: "/opt/envoy"}
	_, out, _ = m.outrider("envoy", "list", "--offline", "--json")
	var listed []listedEnvoy
	if err := json.Unmarshal([]byte(out), &listed); err != nil || len(listed) != 5 {
		t.Fatalf("%v: %s", err, out)
	}
	if last := listed[4]; last != (listedEnvoy{Version: "1.5.0", Path: "/opt/envoy",
		Running: true}) {
		t.Errorf("%+v", last)
	}
}

func TestEnvoyInstall_NeedsRoot(t *testing.T) {
	m := newMachine(t, nil)
	m.lib = "/sys/outrider" // a path where not even root can create files
	path := m.write("file", "x")
	code, _, errors := m.outrider("envoy", "install", "--file", path)
	if code != api.ExitNotAuthorised ||
		!strings.Contains(errors, "only root can install or choose an Envoy") {
		t.Errorf("exit %d: %s", code, errors)
	}
}

func TestEnvoyInstall_Usage(t *testing.T) {
	m := newMachine(t, nil)
	for _, arguments := range [][]string{
		{"--file", "x", "1.2.3"}, {"--sha256", "x"}, {"1.2.3", "1.2.4"},
	} {
		code, _, errors := m.outrider(append([]string{"envoy", "install"}, arguments...)...)
		if code != api.ExitUsage {
			t.Errorf("%q: exit %d: %s", arguments, code, errors)
		}
	}
}

func TestDownloadBar(t *testing.T) {
	var b strings.Builder
	bar := &downloadBar{out: &b, title: "fetching Envoy 1.2.3"}
	bar.show(18e6, 36e6)
	bar.show(7e6, 0)
	bar.end()
	const want = "\r\x1b[Kfetching Envoy 1.2.3  [###############---------------] 18 of 36 MB" +
		"\r\x1b[Kfetching Envoy 1.2.3  7 MB\r\x1b[K"
	if b.String() != want {
		t.Errorf("%q", b.String())
	}
}
