package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"outrider.org/outrider/scripts/parts"
)

func TestHTTP_ReturnsTheStatus(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/teapot", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	})
	mux.Handle("/here", http.RedirectHandler("/teapot", http.StatusFound))
	mux.Handle("/elsewhere", http.RedirectHandler("http://elsewhere.invalid/", http.StatusFound))
	for _, server := range []*httptest.Server{httptest.NewServer(mux), httptest.NewTLSServer(mux)} {
		defer server.Close()
		for path, want := range map[string]int{"/teapot": 418, "/here": 418, "/elsewhere": 302} {
			request, err := http.NewRequest(http.MethodGet, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if code, err := HTTP(request); code != want || err != nil {
				t.Errorf("%s: %d, %v", request.URL, code, err)
			}
		}
	}
}

func TestTCPAndGRPC_NeedAServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, service := grpc.NewServer(), health.NewServer()
	service.SetServingStatus("down", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(server, service)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	address := listener.Addr().String()
	for _, test := range []struct {
		name   string
		run    func(context.Context, string) error
		target string
		want   string // of the error; "" = none
	}{
		{"tcp", TCP, address, ""}, {"no tcp", TCP, "127.0.0.1:1", "refused"},
		{"grpc", GRPC, address, ""}, {"grpc, down", GRPC, address + "/down", "NOT_SERVING"},
		{"grpc, absent", GRPC, address + "/absent", "NotFound"},
		{"no grpc", GRPC, "127.0.0.1:1", "refused"},
	} {
		if got := test.run(t.Context(), test.target); message(got) != test.want &&
			(test.want == "" || !strings.Contains(message(got), test.want)) {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestExec_TakesTheExitStatus(t *testing.T) {
	for _, test := range []struct{ script, want string }{
		{"exit 0", ""}, {"echo down >&2; exit 3", "exit status 3: down"},
		{"yes | head -c 100000; exit 1", "exit status 1: y"},
	} {
		got := message(Exec(t.Context(), []string{"sh", "-c", test.script}))
		if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" ||
			len(got) > outputRead+20 {
			t.Errorf("%s: %.300q", test.script, got)
		}
	}
	if err := Exec(t.Context(), []string{"/no/such/program"}); err == nil {
		t.Error("a missing program succeeds")
	}
}

func TestExec_KillsTheGroup(t *testing.T) {
	for script, fails := range map[string]bool{
		"sleep 1000 & echo $! >$0; wait": true, "sleep 1000 >/dev/null 2>&1 & echo $! >$0": false} {
		file := filepath.Join(t.TempDir(), "pid")
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := Exec(ctx, []string{"sh", "-c", script, file})
		cancel()
		if (err != nil) != fails {
			t.Errorf("%s: %v", script, err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		status := filepath.Join("/proc", strings.TrimSpace(string(text)), "cmdline")
		parts.Eventually(t, 5*time.Second, "the child has ended", func() bool {
			line, err := os.ReadFile(status)
			return err != nil || len(line) == 0 // a zombie has none
		})
	}
}

func TestExec_HasNoEnvironmentOfTheAgent(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "/run/credentials")
	t.Setenv("HOME", "/home")
	if err := Exec(t.Context(), []string{"sh", "-c",
		`test -z "$CREDENTIALS_DIRECTORY" && test -n "$PATH" && test "$HOME" = /home`}); err != nil {
		t.Error(err)
	}
}
