package render

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/scripts/parts"
)

// nothing is a discovery server without any resources.
type nothing struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

func (nothing) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if request.GetResponseNonce() == "" {
			response := &discoveryv3.DiscoveryResponse{TypeUrl: request.GetTypeUrl(),
				VersionInfo: "1", Nonce: "1"}
			if err := stream.Send(response); err != nil {
				return err
			}
		}
	}
}

func (nothing) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if request.GetResponseNonce() == "" {
			response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: request.GetTypeUrl(),
				Nonce: "1"}
			if err := stream.Send(response); err != nil {
				return err
			}
		}
	}
}

// discovery runs an xDS server on a Unix socket that accepts streams and sends no responses.
func discovery(t *testing.T, path string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, nothing{})
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// run starts Envoy with a bootstrap, waits until it is live, and returns its log lines at level
// warning and above.
func run(t *testing.T, dir, socket string, rendered []byte, args ...string) *output {
	t.Helper()
	path := filepath.Join(dir, "envoy-"+filepath.Base(socket)+".json")
	if err := os.WriteFile(path, rendered, 0o600); err != nil {
		t.Fatal(err)
	}
	said := &output{}
	process := exec.Command(parts.EnvoyPath(t),
		append([]string{"-c", path, "--disable-hot-restart", "--concurrency", "1",
			"-l", "warning"}, args...)...)
	process.Dir, process.Stdout, process.Stderr = dir, said, said
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if t.Failed() {
			t.Logf("Envoy said:\n%s", said)
		}
	})
	eventually(t, "Envoy is live", func() bool {
		code, body := get(t, socket, http.MethodGet, "/ready")
		return code == http.StatusOK && body == "LIVE\n"
	})
	return said
}

// get sends a request to a Unix socket or to host:port; the code is 0 if it cannot be reached.
func get(t *testing.T, address, method, path string) (code int, body string) {
	t.Helper()
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	request, err := http.NewRequestWithContext(t.Context(), method, "http://envoy/", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.URL.Opaque = path // the path unchanged, including its dots
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

// live returns an input with sockets in dir and free ports.
func live(t *testing.T, dir, admin string) bootstrap.Input {
	t.Helper()
	in := defaults()
	in.AdminSocket = filepath.Join(dir, admin)
	in.Discovery.Socket = filepath.Join(dir, "xds.sock")
	in.SDSSocket = filepath.Join(dir, "sds.sock")
	in.Prometheus = fmt.Sprintf("0.0.0.0:%d", parts.FreePort(t))
	in.Ready.Address = fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	return in
}

func TestBuild_EnvoyLogsNoWarningByDefault(t *testing.T) {
	dir := parts.ShortDir(t)
	in := live(t, dir, "admin-0.sock")
	discovery(t, in.Discovery.Socket)
	var ready atomic.Bool
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz/ready" || !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, "the agent's answer")
	}))
	defer agent.Close()
	in.Ready.Backend = agent.Listener.Addr().String()
	in.MaxConnections = 1 // the readiness and metrics listeners are exempt

	said := run(t, dir, in.AdminSocket, render(t, in))
	if info, err := os.Stat(in.AdminSocket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("admin socket: %v, %v", info, err)
	}

	metrics, readiness := "127.0.0.1"+in.Prometheus[len("0.0.0.0"):], in.Ready.Address
	idle := make([]net.Conn, 3)
	for i := range idle {
		var err error
		if idle[i], err = net.Dial("tcp", metrics); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = idle[i].Close() }()
	}
	if code, body := get(t, metrics, http.MethodGet, "/stats/prometheus"); code != 200 ||
		!strings.Contains(body, "envoy_server_live{} 1") {
		t.Errorf("metrics: %d %.300s", code, body)
	}
	if code, body := get(t, metrics, http.MethodGet,
		"/stats/prometheus?filter=^server.live$"); code != 200 ||
		!strings.Contains(body, "envoy_server_live") {
		t.Errorf("metrics with a filter: %d %.300s", code, body)
	}
	if code, body := get(t, readiness, http.MethodGet, "/healthz/ready"); code != 503 ||
		body != "the agent's answer" {
		t.Errorf("not ready: %d %s", code, body)
	}
	ready.Store(true)
	if code, body := get(t, readiness, http.MethodGet, "/healthz/ready"); code != 200 ||
		body != "the agent's answer" {
		t.Errorf("ready: %d %s", code, body)
	}
	for _, test := range []struct{ address, method, path string }{
		{metrics, http.MethodPost, "/stats/prometheus/../../quitquitquit"},
		{metrics, http.MethodGet, "/stats/prometheus/../../config_dump"},
		{metrics, http.MethodGet, "/stats/prometheus/..%2f..%2fconfig_dump"},
		{metrics, http.MethodPost, "/stats/prometheus"},
		{metrics, http.MethodPost, "/quitquitquit"},
		{metrics, http.MethodGet, "/stats"},
		{readiness, http.MethodPost, "/healthz/ready"},
		{readiness, http.MethodPost, "/quitquitquit"},
		{readiness, http.MethodGet, "/healthz/ready/../../stats/prometheus"},
	} {
		if code, _ := get(t, test.address, test.method, test.path); code != http.StatusNotFound {
			t.Errorf("%s %s: %d", test.method, test.path, code)
		}
	}

	// Another epoch on the same ports, started side by side.
	second := in
	second.AdminSocket = filepath.Join(dir, "admin-1.sock")
	second.Discovery.Delta = false
	saidSecond := run(t, dir, second.AdminSocket, render(t, second))
	if code, _ := get(t, in.AdminSocket, http.MethodGet, "/ready"); code != 200 {
		t.Error("the first is no longer live")
	}
	if text := said.String() + saidSecond.String(); text != "" {
		t.Errorf("Envoy has something to say:\n%s", text)
	}
}

// deprecated is the warning about the only deprecated field of the bootstrap. Envoy has no other
// field for the tracing provider of listeners that name none.
const deprecated = "Using deprecated option 'envoy.config.bootstrap.v3.Bootstrap.tracing'"

func TestBuild_EnvoyAcceptsEveryField(t *testing.T) {
	for _, provider := range []string{"", bootstrap.TracerZipkin, bootstrap.TracerDatadog,
		bootstrap.TracerOpenTelemetry, bootstrap.TracerLightstep} {
		t.Run(provider, func(t *testing.T) {
			dir := folder(t)
			in := live(t, dir, "admin.sock")
			discovery(t, in.Discovery.Socket)
			in.StatsdAddress = "127.0.0.1:1"
			in.OutlierLogPath = filepath.Join(dir, "outlier.log")
			in.MetricsService = &bootstrap.Server{Address: "localhost:1",
				TLS: files(bootstrap.TLSMutual), Keepalive: 1}
			in.AccessLogService = &bootstrap.Server{Address: "localhost:1",
				TLS: files(bootstrap.TLSSimple)}
			in.Node.Metadata = map[string]any{"ANNOTATIONS": map[string]any{
				"sidecar.istio.io/statsInclusionPrefixes": "http."}}
			if provider != "" {
				in.Tracing = &bootstrap.Tracing{Provider: provider, Sampling: 2.5, AccessToken: "t",
					Service: bootstrap.Server{Address: "localhost:1"}}
			}
			said := run(t, dir, in.AdminSocket, render(t, in))
			for line := range strings.Lines(said.String()) {
				if provider == "" || !strings.Contains(line, deprecated) {
					t.Errorf("unknown warning: %s", line)
				}
			}
			code, runtime := get(t, in.AdminSocket, http.MethodGet, "/runtime")
			if has := strings.Contains(runtime, "tracing.random_sampling"); code != 200 ||
				has != (provider != "") {
				t.Errorf("runtime: %d %s", code, runtime)
			}
			if _, stats := get(t, in.AdminSocket, http.MethodGet, "/stats"); strings.Contains(stats,
				"runtime.") ||
				!strings.Contains(stats, "listener.outrider_ready.downstream_cx_active") ||
				!strings.Contains(stats, "http.outrider_ready.downstream_rq_active") {
				t.Errorf("statistics:\n%.2000s", stats)
			}
		})
	}
}

func TestReadyListener_WithoutAgentStatus(t *testing.T) {
	dir := parts.ShortDir(t)
	in := live(t, dir, "admin.sock")
	in.Prometheus, in.Ready.Backend = "", ""
	discovery(t, in.Discovery.Socket)
	run(t, dir, in.AdminSocket, render(t, in))

	ready := func(method, path string) int {
		code, _ := get(t, in.Ready.Address, method, path)
		return code
	}
	if code := ready(http.MethodGet, "/healthz/ready"); code != http.StatusOK {
		t.Errorf("a live Envoy answers %d", code)
	}
	for _, path := range []string{"/ready", "/healthz/ready/../../quitquitquit",
		"/stats/prometheus"} {
		if code := ready(http.MethodGet, path); code != http.StatusNotFound {
			t.Errorf("GET %s: %d, want 404", path, code)
		}
	}
	if code := ready(http.MethodPost, "/healthz/ready"); code != http.StatusNotFound {
		t.Errorf("POST: %d, want 404", code)
	}
	get(t, in.AdminSocket, http.MethodPost, "/healthcheck/fail")
	if code := ready(http.MethodGet, "/healthz/ready"); code != http.StatusServiceUnavailable {
		t.Errorf("a draining Envoy answers %d", code)
	}
}

func TestBuild_IPv6NodeListensOnBothFamilies(t *testing.T) {
	dir := parts.ShortDir(t)
	in := input(inputs["ipv6"])
	in.AdminSocket, in.Discovery, in.SDSSocket, in.Tracing = filepath.Join(dir, "a.sock"),
		bootstrap.Discovery{}, "", nil
	port := parts.FreePort(t)
	in.Prometheus, in.Ready.Address = fmt.Sprintf(":%d", port),
		fmt.Sprintf(":%d", parts.FreePort(t))
	run(t, dir, in.AdminSocket, render(t, in))
	for _, host := range []string{"127.0.0.1", "::1"} {
		address := net.JoinHostPort(host, fmt.Sprint(port))
		if code, _ := get(t, address, http.MethodGet, "/stats/prometheus"); code != 200 {
			t.Errorf("%s: %d", address, code)
		}
	}
}
