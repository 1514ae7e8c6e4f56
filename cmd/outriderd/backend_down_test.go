package main_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

const failingService = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s}
spec:
  hosts: [%[1]s.test]
  resolution: STATIC
  ports: [{number: %[2]d, name: p, protocol: %[3]s}]
`

const timeout = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: slow}
spec: {hosts: [slow.test], http: [{timeout: 0.3s, route: [{destination: {host: slow.test}}]}]}
`

// TestBackendDown_IsSaidWithItsCauseUntilItAnswers sends requests to backends that refuse
// connections, close connections, do not respond or do not exist. The status reports each with the
// cause. When the first backend starts, the report about it ends.
func TestBackendDown_IsSaidWithItsCauseUntilItAnswers(t *testing.T) {
	t.Parallel()
	dead, deadTCP, closes, slow := parts.FreePort(t), parts.FreePort(t), acceptAll(t, true),
		acceptAll(t, false)
	var mesh strings.Builder
	ports := map[string]int{}
	for _, service := range []struct {
		name, protocol string
		backend        int
	}{
		{"dead", "HTTP", dead}, {"deadtcp", "TCP", deadTCP}, {"closes", "HTTP", closes},
		{"slow", "HTTP", slow}, {"nowhere", "HTTP", 0},
	} {
		ports[service.name] = parts.FreePort(t)
		fmt.Fprintf(&mesh, failingService, service.name, ports[service.name], service.protocol)
		if service.backend != 0 {
			fmt.Fprintf(&mesh, "  endpoints: [{address: 127.0.0.1, ports: {p: %d}}]\n",
				service.backend)
		}
	}
	r := rig.New(t, rig.Options{Race: true,
		Mesh: map[string]string{"failing.yaml": mesh.String() + timeout}})
	daemon := r.StartReady()
	var wants []string
	for name, what := range map[string]string{
		"dead":    fmt.Sprintf(" at 127.0.0.1:%d fails: connection refused (", dead),
		"deadtcp": fmt.Sprintf(" at 127.0.0.1:%d fails: connection refused (", deadTCP),
		"closes":  fmt.Sprintf(" at 127.0.0.1:%d fails: it closed the connection before it answered (", closes),
		"slow":    fmt.Sprintf(" at 127.0.0.1:%d fails: no answer in time (", slow),
		"nowhere": " fails: no healthy endpoint (",
	} {
		_, _, _ = r.GetHostThroughEnvoy(name+".test", ports[name], "/")
		wants = append(wants, "backend "+name+".test"+what)
	}
	rig.Eventually(t, time.Minute, "status names each backend and its cause", func() bool {
		told := r.RunOutrider("status").Stdout
		for _, want := range wants {
			if !strings.Contains(told, want) {
				t.Logf("no %q in %s", want, told)
				return false
			}
		}
		return true
	})
	if n := strings.Count(daemon.Output(), "backend fails"); n != len(wants) {
		t.Errorf("%d lines for %d backends:\n%s", n, len(wants), daemon.Output())
	}
	if ready, why := r.Ready(); !ready {
		t.Errorf("dead backends make the proxy unready: %s", why)
	}
	told := r.RunOutrider("mesh", "check")
	for _, want := range wants {
		if told.ExitCode != 0 || !strings.Contains(told.Stderr, "warning: "+want) {
			t.Errorf("mesh check: exit %d, no %q: %s", told.ExitCode, want, told.Stderr)
		}
	}
	if told := r.RunOutrider("proxy", "endpoints"); !strings.Contains(told.Stdout,
		"fails: connection refused") {
		t.Errorf("proxy endpoints: %s", told.Stdout)
	}
	if page := r.RunOutrider("status", "--html").Stdout; !strings.Contains(page,
		fmt.Sprintf(`<div class="bad">127.0.0.1:%d fails: connection refused`, dead)) {
		t.Errorf("status --html shows it as healthy: %s", page)
	}
	var status api.Status
	if r.RunOutriderJSON(&status, "status"); len(status.FailingBackends) != len(wants) {
		t.Errorf("failing backends: %+v", status.FailingBackends)
	}

	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", dead))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler()}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
	rig.Eventually(t, time.Minute, "the first success ends it", func() bool {
		_, _, _ = r.GetHostThroughEnvoy("dead.test", ports["dead"], "/")
		return !strings.Contains(r.RunOutrider("status").Stdout, "backend dead.test")
	})
	if !strings.Contains(daemon.Output(), "backend answers again") {
		t.Errorf("the log does not say that it answers:\n%s", daemon.Output())
	}
}

// acceptAll listens on 127.0.0.1 and returns the port. It closes each connection after its first
// byte or, if closes is not set, never responds.
func acceptAll(t *testing.T, closes bool) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		var held []net.Conn // keeps connections reachable, so that no finalizer closes them
		for {
			connection, err := listener.Accept()
			if err != nil {
				for _, connection := range held {
					_ = connection.Close()
				}
				return
			}
			held = append(held, connection)
			if closes {
				_, _ = connection.Read(make([]byte, 1))
				_ = connection.Close()
			}
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}
