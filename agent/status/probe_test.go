package status

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// calm is the timeout of probes that must succeed. The default of one second is too short for a
// busy machine.
const calm = 20 * time.Second

// application returns a handler with fixed answers by path.
func application(t *testing.T) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/teapot",
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	mux.HandleFunc("/here",
		func(w http.ResponseWriter,
			r *http.Request) {
			http.Redirect(w, r, "/teapot", http.StatusFound)
		})
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusMovedPermanently)
	})
	mux.HandleFunc("/circle",
		func(w http.ResponseWriter,
			r *http.Request) {
			http.Redirect(w, r, "/circle", http.StatusFound)
		})
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(20 * time.Second):
			t.Error("the probe's request was not ended")
		}
	})
	return mux
}

func TestProbeHTTP(t *testing.T) {
	plain := httptest.NewServer(application(t))
	defer plain.Close()
	secure := httptest.NewTLSServer(application(t))
	defer secure.Close()
	_, url := startServer(t, Options{Config: Config{Probes: map[string]Probe{
		"app/livez": {HTTP: plain.URL + "/ok", Timeout: calm},
		"tls":       {HTTP: secure.URL + "/ok", Timeout: calm},
		"teapot":    {HTTP: plain.URL + "/teapot", Timeout: calm},
		"here":      {HTTP: plain.URL + "/here", Timeout: calm},
		"elsewhere": {HTTP: plain.URL + "/elsewhere", Timeout: calm},
		"circle":    {HTTP: plain.URL + "/circle", Timeout: calm},
		"slow":      {HTTP: plain.URL + "/slow", Timeout: 50 * time.Millisecond},
		"none":      {HTTP: "http://127.0.0.1:1/", Timeout: calm},
		"empty":     {Timeout: calm},
	}}})
	for _, test := range []struct {
		name string
		code int
		says string
	}{
		{"app/livez", 200, "answered 200"},
		{"tls", 200, ""},
		{"teapot", 418, "answered 418"},
		{"here", 418, ""},
		{"elsewhere", 200, "answered 301"},
		{"circle", 500, "more than 10 redirects"},
		{"slow", 500, "no answer within 50ms"},
		{"none", 500, "connection refused"},
		{"empty", 500, "none of http, tcp and grpc"},
		{"app", 404, "app/livez, circle"},
		{"app/livez/", 404, ""},
		{"", 404, ""},
	} {
		code, body, _ := ask(t, "GET", url+"/app-health/"+test.name)
		if code != test.code || !strings.Contains(body, test.says) {
			t.Errorf("%s: %d %s", test.name, code, body)
		}
	}
	if code, _, _ := ask(t, "POST", url+"/app-health/teapot"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
}

func TestProbeForwardsHeadersAndHost(t *testing.T) {
	var got *http.Request
	app := httptest.NewServer(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) { got = r.Clone(t.Context()) }))
	defer app.Close()
	appPort := app.Listener.Addr().(*net.TCPAddr).Port
	_, url := startServer(t, Options{Config: Config{Probes: map[string]Probe{
		"plain": {HTTP: app.URL, Timeout: calm},
		"set": {HTTP: app.URL, Timeout: calm, Headers: map[string]string{"x-set": "configured",
			"host": "configured.example"}},
	}}})
	ask(t, "GET", url+"/app-health/plain", "X-Set", "incoming", "User-Agent", "kube-probe/1.30",
		"Connection", "x-hop")
	if got.Header.Get("X-Set") != "incoming" || got.Header.Get("User-Agent") != "kube-probe/1.30" ||
		got.Header.Get("Connection") == "x-hop" {
		t.Errorf("headers: %v", got.Header)
	}
	if _, port, _ := net.SplitHostPort(got.Host); port != strconv.Itoa(appPort) {
		t.Errorf("Host %s names the status port, not the application's %d", got.Host, appPort)
	}
	ask(t, "GET", url+"/app-health/plain", "Host", "incoming.example")
	if got.Host != "incoming.example" {
		t.Errorf("Host %s", got.Host)
	}
	ask(t, "GET", url+"/app-health/set", "X-Set", "incoming", "Host", "incoming.example")
	if got.Header.Get("X-Set") != "configured" || got.Host != "configured.example" {
		t.Errorf("Host %s, headers %v", got.Host, got.Header)
	}
}

func TestProbeTCPAndGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	service := health.NewServer()
	service.SetServingStatus("down", healthv1.HealthCheckResponse_NOT_SERVING)
	healthv1.RegisterHealthServer(server, service)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	address := listener.Addr().String()
	_, url := startServer(t, Options{Config: Config{Probes: map[string]Probe{
		"tcp":         {TCP: address, Timeout: calm},
		"tcp-none":    {TCP: "127.0.0.1:1", Timeout: calm},
		"grpc":        {GRPC: address, Timeout: calm},
		"grpc-down":   {GRPC: address + "/down", Timeout: calm},
		"grpc-absent": {GRPC: address + "/absent", Timeout: calm},
		"grpc-none":   {GRPC: "127.0.0.1:1", Timeout: calm},
	}}})
	for _, test := range []struct {
		name string
		code int
		says string
	}{
		{"tcp", 200, ""}, {"tcp-none", 500, "refused"}, {"grpc", 200, ""},
		{"grpc-down", 500, "NOT_SERVING"},
		{"grpc-absent", 500, "NotFound"}, {"grpc-none", 500, "refused"},
	} {
		if code, body, _ := ask(t, "GET", url+"/app-health/"+test.name); code != test.code ||
			!strings.Contains(body, test.says) {
			t.Errorf("%s: %d %s", test.name, code, body)
		}
	}
}

func TestAClientThatSendsSlowlyIsCut(t *testing.T) {
	server, _ := startServer(t, Options{})
	connection, err := net.Dial("tcp", server.ListenAddress())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := connection.Write(
		[]byte("POST /drain HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = connection.SetReadDeadline(time.Now().Add(15 * time.Second))
	if _, err := io.Copy(io.Discard, connection); err != nil {
		t.Errorf("the connection is still open: %v", err)
	}
}
