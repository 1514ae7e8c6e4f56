package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// keeperEnvironment is the variable that makes the test binary act as the keeper, so that the
// keeper runs with the race detector.
const keeperEnvironment = "OUTRIDER_TEST_KEEPER"

// fakeEnvironment is the variable that makes the test binary act as a fake Envoy (fake_test.go).
const fakeEnvironment = "OUTRIDER_TEST_FAKE"

func init() {
	if os.Getenv(keeperEnvironment) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(keeperEnvironment) != "":
		os.Exit(Main(os.Args[1:], "test", os.Stdout, os.Stderr))
	case os.Getenv(fakeEnvironment) != "":
		os.Exit(fake(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// lab is a keeper in a process and a folder of its own, for one test.
type lab struct {
	*testing.T
	folder string
	log    string
	client *Client
	ids    int
}

// keeperEnvironmentOf returns an environment in which the test binary acts as a keeper, and the
// race detector does not delay its exit by a second.
func keeperEnvironmentOf() []string {
	return append(os.Environ(), keeperEnvironment+"=1", "GORACE=atexit_sleep_ms=0")
}

func selfPath(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func newLab(t *testing.T) *lab { return newLabWith(t, selfPath(t)) }

// newLabWith starts a keeper from a given program.
func newLabWith(t *testing.T, program string) *lab {
	t.Helper()
	l := &lab{T: t, folder: filepath.Join(parts.ShortDir(t), "k")}
	l.log = l.folder + ".log"
	log, err := os.Create(l.log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	l.client, err = StartKeeper(l.context(), LaunchOptions{
		Folder: l.folder, Binary: program, Stderr: log, Env: keeperEnvironmentOf(),
		IdleTimeout: 20 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	pid := l.client.Info().PID
	t.Cleanup(func() {
		l.end()
		if t.Failed() {
			content, _ := os.ReadFile(l.log)
			t.Logf("the keeper said:\n%s", content)
		}
		l.eventually("the keeper ends", func() bool { return unix.Kill(pid, 0) != nil })
	})
	return l
}

// end connects to the keeper again and shuts it down, unless it has ended.
func (l *lab) end() {
	l.client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client, err := Dial(ctx, filepath.Join(l.folder, socketName))
	if errors.Is(err, ErrNotRunning) {
		return
	}
	if err != nil {
		l.Errorf("connect to end the keeper: %v", err)
		return
	}
	defer client.Close()
	if err := client.Shutdown(ctx); err != nil {
		l.Errorf("end the keeper: %v", err)
	}
}

func (l *lab) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	l.Cleanup(cancel)
	return ctx
}

// dial connects again after the present connection was closed or lost.
func (l *lab) dial() {
	l.Helper()
	client, err := Dial(l.context(), filepath.Join(l.folder, socketName))
	if err != nil {
		l.Fatal(err)
	}
	l.client = client
	l.Cleanup(client.Close)
}

// eventually polls until a condition holds.
func (l *lab) eventually(what string, holds func() bool) {
	l.Helper()
	l.within(20*time.Second, what, holds)
}

func (l *lab) within(limit time.Duration, what string, holds func() bool) {
	l.Helper()
	parts.Eventually(l, limit, what, holds)
}

// startFake starts a fake Envoy whose arguments are steps (see fake).
func (l *lab) startFake(epoch int, hotRestart bool, arguments ...string) Process {
	l.Helper()
	l.ids++
	process, err := l.client.Start(l.context(), StartSpec{
		ID: fmt.Sprintf("p%d", l.ids), RestartEpoch: epoch, EpochNumber: epoch, HotRestart: hotRestart,
		Path: selfPath(l.T), Args: arguments, Env: []string{fakeEnvironment + "=1"},
	})
	if err != nil {
		l.Fatal(err)
	}
	return process
}

// says waits until the last log line of a process equals line.
func (l *lab) says(id, line string) {
	l.Helper()
	l.eventually(id+" says "+line, func() bool {
		lines := l.process(id).LastLines
		return len(lines) > 0 && lines[len(lines)-1] == line
	})
}

// process returns a process by its ID.
func (l *lab) process(id string) Process {
	l.Helper()
	processes, err := l.client.Processes(l.context())
	if err != nil {
		l.Fatal(err)
	}
	for _, p := range processes {
		if p.ID == id {
			return p
		}
	}
	l.Fatalf("the keeper does not know %q", id)
	return Process{}
}

// exitOf waits for an exit.
func (l *lab) exitOf(id string) Process {
	l.Helper()
	var found Process
	l.eventually("exit of "+id, func() bool { found = l.process(id); return found.Exit != nil })
	return found
}

// envoy is one real Envoy of a lab, serving "hello from <name>" on the lab's port.
type envoy struct {
	Process
	lab   *lab
	admin string
}

type envoyOptions struct {
	port                  int
	sideBySide            bool
	level                 string // log level; "" = info
	broken                bool   // use a bootstrap that Envoy can read but refuses
	drain, parentShutdown int    // seconds: --drain-time-s, --parent-shutdown-time-s
}

// startEnvoy starts a real Envoy and returns immediately.
func (l *lab) startEnvoy(epoch int, o envoyOptions) envoy {
	l.Helper()
	l.ids++
	id := fmt.Sprintf("e%d", l.ids)
	admin := filepath.Join(l.folder, fmt.Sprintf("admin-%d.sock", l.ids))
	cluster := `,"route":{"cluster":"none"}`
	if !o.broken {
		cluster = fmt.Sprintf(`,"direct_response":{"status":200,"body":{"inline_string":"hello from %s"}}`, id)
	}
	bootstrap := fmt.Sprintf(`{"admin":{"address":{"pipe":{"path":%q,"mode":432}}},"static_resources":{"listeners":[{"name":"web",
"address":{"socket_address":{"address":"127.0.0.1","port_value":%d}},"filter_chains":[{"filters":[{"name":"hcm","typed_config":{
"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager","stat_prefix":"web",
"route_config":{"virtual_hosts":[{"name":"all","domains":["*"],"routes":[{"match":{"prefix":"/"}%s}]}]},
"http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}]}}`,
		admin, o.port, cluster)
	path := filepath.Join(l.folder, id+".json")
	if err := os.WriteFile(path, []byte(bootstrap), 0o600); err != nil {
		l.Fatal(err)
	}
	level, drain, parentShutdown := "info", 1, 2
	if o.level != "" {
		level = o.level
	}
	if o.parentShutdown > 0 {
		drain, parentShutdown = o.drain, o.parentShutdown
	}
	arguments := []string{"-c", path, "-l", level, "--concurrency", "1",
		"--drain-time-s", strconv.Itoa(drain), "--parent-shutdown-time-s",
		strconv.Itoa(parentShutdown)}
	info := l.client.Info()
	if o.sideBySide {
		arguments = append(arguments, "--disable-hot-restart")
	} else {
		arguments = append(arguments, "--base-id", strconv.FormatUint(uint64(info.BaseID), 10),
			"--restart-epoch", strconv.Itoa(epoch),
			"--socket-path", info.SocketPath, "--socket-mode", "600",
			"--skip-hot-restart-parent-stats")
	}
	process, err := l.client.Start(l.context(), StartSpec{
		ID: id, RestartEpoch: epoch, EpochNumber: l.ids, HotRestart: !o.sideBySide, Path: parts.EnvoyPath(l.T),
		Args: arguments, Env: []string{},
	})
	if err != nil {
		l.Fatalf("start epoch %d: %v", epoch, err)
	}
	return envoy{process, l, admin}
}

// state returns the state in Envoy's admin interface, "" if it does not answer.
func (e envoy) state() string {
	connection, err := net.DialTimeout("unix", e.admin, time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = connection.Close() }()
	_ = connection.SetDeadline(time.Now().Add(2 * time.Second))
	_, _ = fmt.Fprint(connection, "GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
	answer := make([]byte, 4096)
	var text strings.Builder
	for {
		n, err := connection.Read(answer)
		text.Write(answer[:n])
		if err != nil {
			break
		}
	}
	if strings.Contains(text.String(), "LIVE") {
		return "LIVE"
	}
	return ""
}

// live waits until an Envoy is LIVE.
func (e envoy) live() envoy {
	e.lab.Helper()
	e.lab.eventually(e.ID+" is live", func() bool {
		if p := e.lab.process(e.ID); p.Exit != nil {
			e.lab.Fatalf("%s (epoch %d) exited before it was live: %+v\n%s", e.ID, e.RestartEpoch, *p.Exit,
				strings.Join(p.LastLines, "\n"))
		}
		return e.state() == "LIVE"
	})
	return e
}

// get sends a request to the lab's listener on a new connection.
func get(port int) (string, error) {
	connection, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		20*time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = connection.Close() }()
	// On a busy machine Envoy's threads may not run for seconds.
	_ = connection.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := fmt.Fprint(connection,
		"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, err := connection.Read(answer)
	if n == 0 {
		return "", err
	}
	_, body, _ := strings.Cut(string(answer[:n]), "\r\n\r\n")
	return body, nil
}

// gone reports whether a process has ended or is a zombie.
func gone(pid int) bool {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(content), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}
