package main_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// unusual describes listeners of a bootstrap_override that differ from all listeners that Outrider
// generates.
type unusual struct {
	inRange int    // HTTP port in the kernel's range of ephemeral ports
	socket  string // path of a Unix socket with HTTP
	tcp     int    // port of a TCP proxy to the slow backend
	slow    net.Listener
}

// unusualOf chooses the addresses of the listeners, and starts the slow backend. The backend reads
// each connection to its end, and responds after answerTime.
func unusualOf(t *testing.T, r *rig.Rig) unusual {
	t.Helper()
	slow, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slow.Close() })
	go func() {
		for {
			connection, err := slow.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.ReadAll(connection)
				time.Sleep(answerTime) //house:sleep a backend that takes its time
				_, _ = io.WriteString(connection, "answer")
				_ = connection.Close()
			}()
		}
	}()
	return unusual{outgoingPort(t), filepath.Join(r.Dir, "app.sock"), parts.FreePort(t), slow}
}

// outgoingPort returns a port in the range of ephemeral ports. A bound socket reserves it until the
// test ends; Envoy can bind it as well, because both use SO_REUSEPORT.
func outgoingPort(t *testing.T) int {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(socket) })
	err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	err = errors.Join(err, unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, failure := unix.Getsockname(socket)
	if err = errors.Join(err, failure); err != nil {
		t.Fatal(err)
	}
	return name.(*unix.SockaddrInet4).Port
}

// answerTime is the delay of the backends' responses. A stop that waits for no request takes less
// time.
const answerTime = 7 * time.Second

func (u unusual) override(backend int) string {
	const filters = "envoy.extensions.filters."
	http := `{"name": "http", "typed_config": {"@type": "type.googleapis.com/` + filters +
		`network.http_connection_manager.v3.HttpConnectionManager",
  "stat_prefix": "unusual", "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/` + filters + `http.router.v3.Router"}}],
  "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "backend", "timeout": "0s"}}]}]}}}`
	tcp := `{"name": "tcp", "typed_config": {"@type": "type.googleapis.com/` + filters +
		`network.tcp_proxy.v3.TcpProxy", "stat_prefix": "unusual", "cluster": "slow"}}`
	port := func(port int) string {
		return fmt.Sprintf(`{"socket_address": {"address": "127.0.0.1", "port_value": %d}}`, port)
	}
	listener := func(name, address, filter string) string {
		return fmt.Sprintf(`{"name": %q, "address": %s, "filter_chains": [{"filters": [%s]}]}`,
			name, address, filter)
	}
	cluster := func(name string, to int) string {
		return fmt.Sprintf(
			`{"name": %q, "type": "STATIC", "load_assignment": {"cluster_name": %q, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": %s}}]}]}}`,
			name, name, port(to))
	}
	return fmt.Sprintf(`{"static_resources": {"listeners": [%s, %s, %s], "clusters": [%s, %s]}}`,
		listener("in-range", port(u.inRange), http),
		listener("socket", fmt.Sprintf(`{"pipe": {"path": %q}}`, u.socket), http),
		listener("tcp", port(u.tcp), tcp),
		cluster("backend", backend), cluster("slow", u.slow.Addr().(*net.TCPAddr).Port))
}

// request sends an HTTP request over a new connection, whose response takes answerTime.
func request(network, address string) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: dial}}
	answer, err := client.Get(fmt.Sprintf("http://web.test/sleep/%v", answerTime))
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// ask sends data through the TCP proxy, closes its sending side, and waits for the response.
func (u unusual) ask() error {
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", u.tcp))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	_, err = io.WriteString(connection, "question")
	err = errors.Join(err, connection.(*net.TCPConn).CloseWrite())
	text, failure := io.ReadAll(connection)
	if err = errors.Join(err, failure); err == nil && string(text) != "answer" {
		return fmt.Errorf("the answer is %q", text)
	}
	return err
}

// A stop during the overlap of two epochs waits for the requests of the older one, whose admin
// interface is closed. It does not wait for that epoch's pooled connections to backends.
func TestStop_InOverlapCutsNoRequest(t *testing.T) {
	type scene struct {
		rig *rig.Rig
		unusual
	}
	for name, test := range map[string]struct {
		request func(scene) error
		removed bool // the next epoch lacks this listener
	}{
		"HTTP": {request: func(s scene) error {
			return request("tcp", fmt.Sprintf("127.0.0.1:%d", s.rig.Ports.HTTP))
		}},
		"a port of outgoing connections": {request: func(s scene) error {
			return request("tcp", fmt.Sprintf("127.0.0.1:%d", s.inRange))
		}},
		"one that the next epoch has not": {request: func(s scene) error {
			return request("tcp", fmt.Sprintf("127.0.0.1:%d", s.inRange))
		}, removed: true},
		"a Unix socket": {request: func(s scene) error {
			return request("unix", s.socket)
		}},
		"TCP, with a client that says all": {request: func(s scene) error { return s.ask() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			toml := "[reload]\nwatch = false\n[envoy]\ndrain_duration = " +
				"\"50s\"\nparent_shutdown_duration = \"55s\"\nmaximum_drain_duration = \"50s\"\n"
			r := rig.New(t, rig.Options{TOML: toml})
			s := scene{r, unusualOf(t, r)}
			r.WriteFile("override.json", s.override(r.Ports.Backend))
			with := toml + fmt.Sprintf("bootstrap_override = %q\n",
				filepath.Join(r.Dir, "override.json"))
			r.SetTOML(with)
			daemon := r.StartReady()
			// This makes Envoy open a pooled connection to the backend.
			if _, _, err := r.GetThroughEnvoy("/"); err != nil {
				t.Fatal(err)
			}
			outcome := make(chan error, 1)
			go func() { outcome <- test.request(s) }()
			rig.Eventually(t, time.Minute, "the request has reached a backend", func() bool {
				return strings.Contains(adminText(r, "/stats?usedonly&filter="+url.QueryEscape(
					`cluster\.(backend|outbound.*)\.upstream_rq_active|cluster\.slow\.upstream_cx_active`,
				)), ": 1\n")
			})
			next := with
			if test.removed {
				next = toml
			}
			r.SetTOML(next + "concurrency = 1\n")
			if told := r.RunOutrider("reload"); told.ExitCode != 0 {
				t.Fatalf("reload: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
			}
			began := time.Now()
			if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := <-outcome; err != nil {
				t.Errorf("the request at the older epoch: %v", err)
			}
			if exit := daemon.Wait(t, time.Minute); exit != 0 {
				t.Errorf("exit %d", exit)
			}
			if took := time.Since(began); took > 35*time.Second {
				t.Errorf("the stop took %v", took)
			}
		})
	}
}
