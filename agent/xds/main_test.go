package xds

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) {
	// the process was started to run the clients of a benchmark
	if target := os.Getenv(benchTarget); target != "" {
		if err := benchClients(target); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// patience bounds the wait for events that normally occur immediately.
const patience = 20 * time.Second

// eventually polls until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	parts.Eventually(t, patience, what, holds)
}

// oneFeed is a Source that returns the same feed for all proxies.
type oneFeed struct{ feed *resource.Feed }

func (s oneFeed) Feed(*corev3.Node) (*resource.Feed, error) { return s.feed, nil }

// recorder is an Observer that records all events.
type recorder struct {
	mu           sync.Mutex
	connected    []Stream
	disconnected []Stream
	pushes       []string // types and names of the resources in each push, such as "Cluster a b -c"
	refusals     []Refusal
	recovered    []string
	acceptances  int
}

func (r *recorder) OnConnect(s Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connected = append(r.connected, s)
}

func (r *recorder) OnDisconnect(s Stream, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.disconnected = append(r.disconnected, s)
}

func (r *recorder) OnPush(_ Stream, p Push) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := short(p.Type)
	for _, name := range p.Names() {
		line += " " + name
	}
	removed := slices.Sorted(slices.Values(p.Removed))
	for _, name := range removed {
		line += " -" + name
	}
	r.pushes = append(r.pushes, line)
}

func (r *recorder) OnAck(Stream, string, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acceptances++
}

func (r *recorder) OnNack(_ Stream, refusal Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusals = append(r.refusals, refusal)
}

func (r *recorder) OnNackResolved(_ Stream, typeURL string, names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recovered = append(r.recovered, fmt.Sprint(short(typeURL), names))
}

// take returns the pushes that were recorded since its last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	pushes := r.pushes
	r.pushes = nil
	return pushes
}

// with calls f while the recorder is locked.
func (r *recorder) with(f func(*recorder)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r)
}

func short(typeURL string) string {
	switch typeURL {
	case resource.ClusterType:
		return "CDS"
	case resource.EndpointType:
		return "EDS"
	case resource.ListenerType:
		return "LDS"
	case resource.ExtensionType:
		return "ECDS"
	case resource.RouteType:
		return "RDS"
	case resource.SecretType:
		return "SDS"
	}
	return typeURL
}

// serve runs a server on a Unix socket until the test ends or the returned function is called.
func serve(t testing.TB, socket string, options Options) (*Server, func()) {
	t.Helper()
	server, err := NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := Listen(ListenOptions{Path: socket})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return server, stop
}

func socketPath(t testing.TB) string { return filepath.Join(parts.ShortDir(t), "xds.sock") }

func encoded(t testing.TB, name string, message proto.Message,
	origins ...resource.Origin) *resource.Resource {
	t.Helper()
	r, err := resource.New(name, message, origins...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
