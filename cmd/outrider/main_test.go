package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/bootstrap/render"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the golden files anew")

// noon is the current time in all tests.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return noon.Add(-d) }

func number(n int) *int { return &n }

// machine is a test host with its own directories and, optionally, an agent.
type machine struct {
	t      *testing.T
	dir    string
	lib    string // folder of the installed Envoys
	board  *condition.Registry
	colour bool
	width  int       // width of the terminal in characters
	unit   unitState // state of the agent's unit
	proc   string    // folder in place of /proc
}

// newMachine returns a machine with an agent whose API is served by backend; nil: no agent runs.
func newMachine(t *testing.T, backend *apitest.Backend) *machine {
	t.Helper()
	m := &machine{t: t, dir: parts.ShortDir(t), board: condition.NewRegistry(), proc: "/proc"}
	m.lib = filepath.Join(m.dir, "lib")
	for _, dir := range []string{"run/envoy", "keeper", "shm", "etc/mesh.d"} {
		if err := os.MkdirAll(filepath.Join(m.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if backend != nil {
		apitest.Serve(t, filepath.Join(m.dir, "run"), backend, m.board)
	}
	return m
}

func (m *machine) app(out, err *bytes.Buffer) *app {
	maker := blueprint.BuilderForThisHost()
	maker.RenderBootstrap = func(_ context.Context, request bootstrap.Request) (*bootstrap.Rendered,
		error) {
		return render.FromRequest(request)
	}
	return &app{out: out, err: err, now: func() time.Time { return noon }, colour: m.colour,
		width: m.width, maker: maker, indexTime: time.Minute,
		unit: func(context.Context, string) unitState { return m.unit }, paths: paths{
			configuration: filepath.Join(m.dir, "etc"), runtime: filepath.Join(m.dir, "run"),
			keeper: filepath.Join(m.dir, "keeper"), capture: filepath.Join(m.dir, "capture"),
			sharedMemory: filepath.Join(m.dir, "shm"), processes: m.proc, envoys: m.lib,
			state: "/var/lib/outrider", hosts: filepath.Join(m.dir, "hosts")}}
}

// outrider runs a command line. In the output, the machine's directory is replaced by $DIR.
func (m *machine) outrider(arguments ...string) (code int, out, errors string) {
	m.t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	code = m.app(&outBuffer, &errBuffer).run(m.t.Context(), arguments)
	clean := func(b bytes.Buffer) string { return strings.ReplaceAll(b.String(), m.dir, "$DIR") }
	return code, clean(outBuffer), clean(errBuffer)
}

func (m *machine) write(path, content string) string {
	m.t.Helper()
	path = filepath.Join(m.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// golden compares got with the file testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	parts.Golden(t, filepath.Join("testdata", name), got, *update)
}

// someStatus returns a status with all fields set.
func someStatus() api.Status {
	return api.Status{
		Version: "1.2.3", Instance: "edge", PID: 100, Started: ago(3 * time.Hour),
		State: api.StateRunning, NotReadyReason: "listener web has no port yet",
		Envoy: api.EnvoyStatus{Enabled: true, Live: true, Version: "1.40.0",
			Path: "/usr/bin/envoy"}, CurrentEpoch: number(2),
		Epochs: []api.Epoch{
			{Number: 2, State: api.EpochLive, PID: 203, Mode: "hot-restart",
				Started: ago(time.Minute), LiveSince: ago(time.Minute), Connections: 12,
				MemoryBytes: 40 << 20},
			{Number: 1, State: api.EpochDraining, PID: 202, Mode: "first",
				Started: ago(2 * time.Hour), Connections: 1, MemoryBytes: 41 << 20},
			{Number: 0, State: api.EpochExited, PID: 201, Started: ago(3 * time.Hour),
				Exited: ago(2 * time.Hour), ExitCause: "killed by SIGKILL; the kernel may have " +
					"been out of memory"},
		},
		Discovery:  api.Discovery{State: "embedded", Detail: "3 files, 1 problem"},
		Identities: []api.Identity{}, ReloadPhase: "reloading (outrider reload): looking up " +
			"statsd.example.com:8125",
		LastReload: &api.LastReload{Time: ago(30 * time.Second), Outcome: api.OutcomeRefused,
			Epoch: number(2), Reasons: []string{"outrider.toml:3:1: envoy.concurrency: must be " +
				"at least 0"}},
		ConfigHash: "abc", ConfigFiles: []string{"/etc/outrider/outrider.toml"},
		KeysPendingRestart: []string{"paths.state_dir"},
		Conditions: []condition.Condition{
			{Code: "configuration-refused", Severity: condition.Error, Since: ago(30 * time.Second),
				Sentence: "the configuration on disk is refused"},
			{Code: "mesh-problems", Severity: condition.Warning, Since: ago(10 * time.Minute),
				Sentence: "the mesh configuration has 1 warning"},
		},
	}
}
