package envoy

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is an Envoy that a test started.
type running struct {
	*Admin
	HTTP, TCP string // addresses of the listeners
	Backend   net.Listener
	log       *parts.SyncBuffer
	exited    chan struct{}
	command   CommandLine
}

const testBootstrap = `{
"admin": {"address": {"pipe": {"path": %[1]q, "mode": 432}}},
"static_resources": {
 "clusters": [{"name": "backend", "connect_timeout": "1s", "load_assignment": {"cluster_name": "backend", "endpoints": [
   {"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": %[2]d}}}}]}]}}],
 "listeners": [
  {"name": "web", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %[3]d}}, "filter_chains": [{"filters": [
   {"name": "envoy.filters.network.http_connection_manager", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "web", "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
     "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
    "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
     {"match": {"prefix": "/"}, "route": {"cluster": "backend", "timeout": "0s"}}]}]}}}]}]},
  {"name": "tunnel", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %[4]d}}, "filter_chains": [{"filters": [
   {"name": "envoy.filters.network.tcp_proxy", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
    "stat_prefix": "tunnel", "cluster": "backend"}}]}]}
 ]}}`

// start runs an Envoy with an HTTP and a TCP listener. The test provides the backend of both.
func start(t *testing.T, command CommandLine) *running {
	t.Helper()
	dir := parts.ShortDir(t)
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	web, tunnel := parts.FreePort(t), parts.FreePort(t)
	socket := filepath.Join(dir, "admin.sock")
	command.ConfigFile = filepath.Join(dir, "envoy.json")
	text := fmt.Sprintf(testBootstrap, socket, port(backend), web, tunnel)
	if err := os.WriteFile(command.ConfigFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e := &running{
		Admin: NewAdmin(socket), Backend: backend, log: &parts.SyncBuffer{},
		exited: make(chan struct{}),
		HTTP:   fmt.Sprintf("127.0.0.1:%d", web), TCP: fmt.Sprintf("127.0.0.1:%d", tunnel),
	}
	e.command = command
	e.launch(t)
	return e
}

// launch starts the Envoy and waits until it is live.
func (e *running) launch(t *testing.T) {
	t.Helper()
	command := e.command
	command.Concurrency = 1
	if command.LogLevel == "" {
		command.LogLevel = "warning"
	}
	process := exec.Command(parts.EnvoyPath(t), command.Args(nil)...)
	process.Stdout, process.Stderr = e.log, e.log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = process.Wait(); close(e.exited) }()
	t.Cleanup(func() {
		_ = process.Process.Kill()
		<-e.exited
		if t.Failed() {
			said := lines(e.log.String())
			t.Logf("Envoy said:\n%s", strings.Join(said[max(0, len(said)-20):], "\n"))
		}
	})
	eventually(t, "Envoy is live", func() bool {
		ready, _, err := e.Ready(t.Context())
		return err == nil && ready
	})
}

// next starts the next epoch with the same configuration and its own admin socket.
func (e *running) next(t *testing.T) *running {
	t.Helper()
	dir := filepath.Dir(e.command.ConfigFile)
	text, err := os.ReadFile(e.command.ConfigFile)
	if err != nil {
		t.Fatal(err)
	}
	following := *e
	following.log, following.exited = &parts.SyncBuffer{}, make(chan struct{})
	following.command.RestartEpoch++
	socket := filepath.Join(dir, fmt.Sprintf("admin-%d.sock", following.command.RestartEpoch))
	following.Admin = NewAdmin(socket)
	following.command.ConfigFile = filepath.Join(dir, fmt.Sprintf("envoy-%d.json",
		following.command.RestartEpoch))
	text = bytes.ReplaceAll(text, []byte(e.String()), []byte(socket))
	if err := os.WriteFile(following.command.ConfigFile, text, 0o600); err != nil {
		t.Fatal(err)
	}
	following.launch(t)
	return &following
}

// eventually polls until the condition holds, for at most thirty seconds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	parts.Eventually(t, time.Minute, what, holds)
}

func lines(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }
