package probe

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
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
		want   string // text in the error; "" = no error
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
