package envoy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

func TestAdminOfARealEnvoy(t *testing.T) {
	e := start(t, CommandLine{RestartEpoch: 3, ServiceNode: "node", ServiceCluster: "cluster",
		LogLevel:          "warning",
		ComponentLogLevel: "misc:error"})
	ctx := t.Context()

	if number, err := e.RestartEpoch(ctx); err != nil || number != 3 {
		t.Errorf("restart epoch %d, %v", number, err)
	}
	stats, err := e.Stats(ctx, `^server\.(live|concurrency)$`)
	if err != nil || len(stats) != 2 || stats["server.live"] != 1 ||
		stats["server.concurrency"] != 1 {
		t.Errorf("stats %v, %v", stats, err)
	}
	// the filter also matches a counter, which must be skipped
	gauges, err := e.Gauges(ctx, `^server\.(live|worker_watchdog_miss)$`)
	if err != nil || len(gauges) != 1 || gauges["server.live"] != 1 {
		t.Errorf("gauges %v, %v", gauges, err)
	}
	if err := e.ReopenLogs(ctx); err != nil {
		t.Error(err)
	}

	if err := e.FailHealthcheck(ctx); err != nil {
		t.Fatal(err)
	}
	if ready, state, err := e.Ready(ctx); ready || state != StateDraining || err != nil {
		t.Errorf("after FailHealthcheck ready %v, state %q, %v", ready, state, err)
	}
	if err := e.OKHealthcheck(ctx); err != nil {
		t.Fatal(err)
	}
	if ready, state, err := e.Ready(ctx); !ready || state != "LIVE" || err != nil {
		t.Errorf("after OKHealthcheck ready %v, state %q, %v", ready, state, err)
	}

	if err := e.SetLogLevels(ctx, "error", "upstream:debug,misc:trace"); err != nil {
		t.Fatal(err)
	}
	levels, err := e.LogLevels(ctx)
	if err != nil || levels["upstream"] != "debug" || levels["misc"] != "trace" ||
		levels["main"] != "error" {
		t.Errorf("levels %v, %v", levels, err)
	}
	if err := e.SetLogLevel(ctx, "nonesuch", "debug"); err == nil {
		t.Error("a component that does not exist got a level")
	}

	if err := e.DrainListeners(ctx, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "listeners are closed", func() bool {
		c, err := net.Dial("tcp", e.HTTP)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if _, err := e.Post(ctx, "/quitquitquit"); err != nil {
		t.Fatal(err)
	}
	<-e.exited
	if _, _, err := e.Ready(ctx); err == nil || !strings.Contains(err.Error(), "admin.sock") {
		t.Errorf("of an Envoy that is gone: %v", err)
	}
}

func TestActivityCountsRequestsAndTunnels(t *testing.T) {
	e := start(t, CommandLine{})
	ctx := t.Context()
	want := func(what string, expected ActiveTraffic) {
		t.Helper()
		var got ActiveTraffic
		eventually(t, what, func() bool {
			activity, err := e.ActiveTraffic(ctx)
			if err != nil {
				t.Fatal(err)
			}
			got = activity
			return got == expected
		})
	}
	want("an Envoy without clients has nothing in hand", ActiveTraffic{})

	tunnel, err := net.Dial("tcp", e.TCP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tunnel.Close() }()
	want("one tunnel", ActiveTraffic{Connections: 1, Tunnels: 1})

	client, err := net.Dial("tcp", e.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	want("one tunnel and one request", ActiveTraffic{Connections: 2, Requests: 1, Tunnels: 1})

	_ = tunnel.Close()
	for range 2 { // two connections: of the tunnel and of the request
		backend, err := e.Backend.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = backend.Close() }()
		request := make([]byte, 1024)
		if n, _ := backend.Read(request); n == 0 {
			_ = backend.Close() // Envoy closes a tunnel once both ends have closed it
			continue
		}
		if _, err := io.WriteString(backend,
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	want("one idle connection", ActiveTraffic{Connections: 1})
	_ = client.Close()
	want("nothing again", ActiveTraffic{})
}

func TestActivityLeavesOutWhatIsNotTheUsers(t *testing.T) {
	got := activity(map[string]uint64{
		"http.admin.downstream_cx_active":                        1,
		"http.admin.downstream_rq_active":                        1,
		"listener.admin.downstream_cx_active":                    1,
		"listener.admin.main_thread.downstream_cx_active":        1,
		"listener.outrider_ready.downstream_cx_active":           2,
		"http.outrider_ready.downstream_cx_active":               2,
		"listener.0.0.0.0_15090.downstream_cx_active":            1,
		"listener.[__]_15021.downstream_cx_active":               1,
		"http.stats.downstream_cx_active":                        1,
		"http.agent.downstream_cx_active":                        1,
		"listener.0.0.0.0_80.downstream_cx_active":               7,
		"listener.0.0.0.0_80.worker_0.downstream_cx_active":      7,
		"http.inbound_0.0.0.0_80.downstream_cx_active":           4,
		"http.inbound_0.0.0.0_80.downstream_rq_active":           5,
		"listener.0.0.0.0_80.http.inbound.downstream_rq_unknown": 1,
	})
	if want := (ActiveTraffic{Connections: 7, Requests: 5, Tunnels: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestAdminPassesRequestsOn(t *testing.T) {
	e := start(t, CommandLine{})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://anything/stats?filter=^server.live$", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: e}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || string(body) != "server.live: 1\n" {
		t.Errorf("%q, %v", body, err)
	}
	if request.URL.Host != "anything" {
		t.Error("the caller's request was changed")
	}
	var status *statusError
	if _, err := e.Get(t.Context(), "/nonesuch"); !errors.As(err, &status) ||
		status.Code != http.StatusNotFound {
		t.Errorf("got %v", err)
	}
}

// A request ends with its context if the admin interface accepts connections but does not respond,
// as when Envoy's main thread hangs.
func TestAdminThatHangs(t *testing.T) {
	socket := parts.ShortDir(t) + "/admin.sock"
	silent, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err = NewAdmin(socket).Ready(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "GET /ready") {
		t.Errorf("got %v", err)
	}
}
