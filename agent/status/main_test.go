package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/epoch/record"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// readiness is a Readiness with a fixed result.
type readiness string

func (r readiness) Ready() (bool, string) { return r == "", string(r) }

// proxy implements Proxy. Tests can replace its epoch.
type proxy struct {
	mu     sync.Mutex
	admin  http.RoundTripper
	epoch  int
	reason string
}

func (p *proxy) LiveAdmin() (http.RoundTripper, int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.admin == nil {
		return nil, 0, errors.New(p.reason)
	}
	return p.admin, p.epoch, nil
}

func (p *proxy) set(admin http.RoundTripper, epoch int, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.admin, p.epoch, p.reason = admin, epoch, reason
}

// roundTripper implements an admin interface with a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering returns an admin interface with fixed answers by path.
func answering(answers map[string]string) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		body, ok := answers[r.URL.Path]
		code := http.StatusOK
		if !ok {
			code = http.StatusNotFound
		}
		return &http.Response{StatusCode: code,
			Header: http.Header{"Content-Type": {"application/json"}},
			Body:   io.NopCloser(strings.NewReader(body)), Request: r}, nil
	})
}

// unixAdmin returns an admin interface on a Unix socket, like that of a real epoch.
func unixAdmin(t *testing.T, socket string) *http.Transport {
	transport := &http.Transport{DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", socket)
		}}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// startServer runs a status server on a free port until the test ends and returns its URL.
func startServer(t *testing.T, options Options) (*Server, string) {
	t.Helper()
	if options.Address == "" {
		options.Address = "127.0.0.1:0"
	}
	if options.Readiness == nil {
		options.Readiness = readiness("")
	}
	options.Conditions, options.Logger = condition.NewRegistry(), discard()
	server := NewServer(options)
	runPart(t, server.Run)
	<-server.Ready()
	return server, "http://" + server.ListenAddress()
}

// epochs implements Epochs.
type epochs struct {
	mu      sync.Mutex
	all     []record.Epoch
	changed chan struct{}
}

func (e *epochs) Epochs() []record.Epoch {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.all
}

func (e *epochs) Changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

func (e *epochs) set(all ...record.Epoch) {
	e.Changed()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = all
	close(e.changed)
	e.changed = nil
}

func startView(t *testing.T, config AdminViewConfig, proxy Proxy) (*AdminView,
	*condition.Registry) {
	t.Helper()
	return startViewOf(t, config, proxy, &epochs{})
}

func startViewOf(
	t *testing.T, config AdminViewConfig, proxy Proxy, all Epochs,
) (*AdminView, *condition.Registry) {
	t.Helper()
	board := condition.NewRegistry()
	view := NewAdminView(AdminViewOptions{Config: config, Proxy: proxy, Epochs: all,
		Conditions: board,
		Logger:     discard()})
	runPart(t, view.Run)
	<-view.Ready()
	return view, board
}

func runPart(t *testing.T, part func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- part(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ended with: %v", err)
		}
	})
}

// client uses a new connection per request, so that none outlives a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
	DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// ask returns the code, body and header of an answer.
func ask(t *testing.T, method, url string, headers ...string) (int, string, http.Header) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			request.Host = headers[i+1]
			continue
		}
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body), response.Header
}

// eventually polls until wanted returns true.
func eventually(t *testing.T, what string, wanted func() bool) {
	t.Helper()
	parts.Eventually(t, time.Minute, what, wanted)
}

// startEnvoy runs a real Envoy with an admin section and further bootstrap members in JSON. It
// returns the path of its admin socket and a function that stops it.
func startEnvoy(t *testing.T, members string) (socket string, stop func()) {
	t.Helper()
	dir := parts.ShortDir(t)
	socket = filepath.Join(dir, "admin.sock")
	bootstrap := filepath.Join(dir, "envoy.json")
	text := fmt.Sprintf(`{"admin": {"address": {"pipe": {"path": %q, "mode": 384}}}%s}`,
		socket, members)
	if err := os.WriteFile(bootstrap, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	command := exec.Command(parts.EnvoyPath(t), "-c", bootstrap, "--disable-hot-restart",
		"--concurrency", "1", "-l", "warning")
	command.Stderr = log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = os.Remove(socket)
	})
	t.Cleanup(stop)
	admin := unixAdmin(t, socket)
	eventually(t, "Envoy is live", func() bool {
		request, _ := http.NewRequest(http.MethodGet, "http://admin/ready", nil)
		response, err := admin.RoundTrip(request)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return socket, stop
}
