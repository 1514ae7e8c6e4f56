package mcp

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds the wait for a change. It is generous, for busy machines.
const limit = 30 * time.Second

// sink records the inputs that a source delivers.
type sink struct {
	sourcetest.Receiver
	t      testing.TB
	source *Source
}

// start runs a source until the test ends.
func start(t testing.TB, o Options) *sink {
	t.Helper()
	s := &sink{t: t}
	o.Name, o.Sink, o.Logger, o.Plaintext = "mcp", s.AcceptUpdate, slog.New(slog.DiscardHandler), true
	source, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.source = source
	sourcetest.Run(t, source.Run)
	return s
}

func (s *sink) paths() string { return strings.Join(s.Paths(), " ") }

func (s *sink) awaitPaths(want string) {
	s.t.Helper()
	parts.EventuallyWithObservation(s.t, limit, "objects "+want, func() (bool, string) {
		got := s.paths()
		status := s.source.Status()
		if status.Err != nil {
			return got == want, got + ": " + status.Err.Error()
		}
		return got == want, got
	})
}

// server is a running discovery server with the objects in a folder, and those of a second source,
// "memory".
type server struct {
	*discovery.Server
	address string
	changes chan []string
	folder  string
}

// stateOnly is an xDS server without incremental xDS.
type stateOnly struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	ads *xds.Server
}

func (s stateOnly) StreamAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return s.ads.StreamAggregatedResources(stream)
}

// serve starts a discovery server at an address; "" selects a free port. If old is set, the server
// does not support incremental xDS.
func serve(t testing.TB, address, folder string, old ...bool) (s *server, end func()) {
	t.Helper()
	s = &server{changes: make(chan []string), folder: folder}
	var err error
	s.Server, err = discovery.New(discovery.Options{Files: []string{folder}, ChangedPaths: s.changes,
		Sources: []string{"files", "memory"}, EncodeObject: Encode})
	if err != nil {
		t.Fatal(err)
	}
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	ads, err := xds.NewServer(xds.Options{Source: s})
	if err != nil {
		t.Fatal(err)
	}
	first := sourcetest.Run(t, s.Run)
	second := sourcetest.Run(t, func(ctx context.Context) error {
		if len(old) == 0 {
			return ads.Serve(ctx, listener)
		}
		grpcServer := grpc.NewServer(ads.ServerOptions()...)
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(grpcServer, stateOnly{ads: ads})
		return admission.ServeGRPC(ctx, grpcServer, listener)
	})
	return s, func() { second(); first() }
}

// write writes a file in the server's folder, or removes it if text is "", and notifies the server.
func (s *server) write(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(s.folder, name)
	err := os.Remove(path)
	if text != "" {
		err = os.WriteFile(path, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.changes <- []string{path}
}
