package main_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"

	// Registers the protobuf types in the bootstrap that bootstrapServer.set makes.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// bootstrapServer is an xDS server (ADS, state of the world) whose only resource is an Envoy
// bootstrap.
type bootstrapServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	bootstrap atomic.Pointer[anypb.Any]
	node      atomic.Pointer[corev3.Node] // node in the last request for the bootstrap
	requests  atomic.Int32                // number of requests for the bootstrap
}

func (s *bootstrapServer) StreamAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		if request.ResponseNonce != "" {
			continue
		}
		response := &discoveryv3.DiscoveryResponse{TypeUrl: request.TypeUrl, VersionInfo: "1",
			Nonce: "1"}
		if strings.HasSuffix(request.TypeUrl, ".Bootstrap") {
			s.node.Store(request.Node)
			s.requests.Add(1)
			response.Resources = []*anypb.Any{s.bootstrap.Load()}
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// set replaces the bootstrap by one with a listener on port that responds with text. Its admin
// interface, its node and its xDS cluster do not fit this host, so the agent must replace them.
func (s *bootstrapServer) set(t *testing.T, port int, text string, of ...proto.Message) {
	t.Helper()
	sent := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(fmt.Appendf(nil, `{
		"node": {"id": "another", "cluster": "another"},
		"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 15000}}},
		"static_resources": {
			"clusters": [{"name": "xds-grpc"}, {"name": "theirs"}],
			"listeners": [{
				"address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}},
				"filter_chains": [{"filters": [{
					"name": "envoy.filters.network.http_connection_manager",
					"typed_config": {
						"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
						"stat_prefix": "upstream",
						"http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
							"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
						"route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{
							"match": {"prefix": "/"},
							"direct_response": {"status": 200, "body": {"inline_string": %q}}}]}]}
					}}]}]
			}]
		}}`, port, text), sent); err != nil {
		t.Fatal(err)
	}
	for _, extension := range of {
		packed, err := anypb.New(extension)
		if err != nil {
			t.Fatal(err)
		}
		packed.TypeUrl += ".v9"
		sent.BootstrapExtensions = append(sent.BootstrapExtensions,
			&corev3.TypedExtensionConfig{Name: "new", TypedConfig: packed})
	}
	packed, err := anypb.New(sent)
	if err != nil {
		t.Fatal(err)
	}
	s.bootstrap.Store(packed)
}

// start serves on an address until the returned stop is called.
func (s *bootstrapServer) start(t *testing.T, address string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

func TestDynamicBootstrap_ComesFromUpstreamOrTheCache(t *testing.T) {
	t.Parallel()
	address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	r := rig.New(t, rig.Options{Race: true, TOML: fmt.Sprintf(
		"[discovery]\naddress = %q\nauth = \"none\"\ndelta = false\ndynamic_bootstrap = true\n"+
			"[envoy]\ndrain_duration = \"1s\"\nparent_shutdown_duration = \"2s\"\n", address)})
	answers := func(want string) {
		t.Helper()
		rig.Eventually(t, time.Minute, "Envoy answers "+want, func() bool {
			_, body, err := r.GetThroughEnvoy("/")
			return err == nil && body == want
		})
	}
	daemon := r.Start()
	var status api.Status
	rig.Eventually(t, time.Minute, "the start waits", func() bool {
		out := r.RunOutrider("status").Stdout
		return strings.Contains(out, "waiting for the bootstrap") && strings.Contains(out, address)
	})
	server := &bootstrapServer{}
	server.set(t, r.Ports.HTTP, "unusable", &corev3.Node{})
	stop := server.start(t, address)
	const unknown = "unknown type type.googleapis.com/envoy.config.core.v3.Node.v9 at "
	rig.Eventually(t, time.Minute, "the start waits for a usable one", func() bool {
		return strings.Contains(r.RunOutrider("status").Stdout, unknown)
	})
	server.set(t, r.Ports.HTTP, "first")
	r.WaitReady(20 * time.Second)
	answers("first")
	if node := server.node.Load(); !strings.HasPrefix(node.Id, "sidecar~") ||
		node.Metadata.Fields["NAMESPACE"].GetStringValue() == "" {
		t.Errorf("the server got the node %v", node)
	}
	if r.RunOutriderJSON(&status, "status", "--json"); len(status.Conditions) > 0 {
		t.Errorf("conditions %+v", status.Conditions)
	}
	if out := r.RunOutrider("proxy", "clusters").Stdout; !strings.Contains(out, "theirs") {
		t.Errorf("the server's cluster is missing:\n%s", out)
	}

	checked := r.RunOutrider("config", "check", filepath.Join(r.Dir, "outrider.toml"))
	if checked.ExitCode != 0 || !strings.Contains(checked.Stdout+checked.Stderr, "was not checked") {
		t.Errorf("config check: %+v", checked)
	}

	server.set(t, r.Ports.HTTP, "second")
	if result := r.RunOutrider("reload"); result.ExitCode != 0 {
		t.Fatalf("reload: %+v\n%s", result, daemon.Output())
	}
	answers("second")
	server.set(t, r.Ports.HTTP, "third", &corev3.Node{})
	if result := r.RunOutrider("reload"); result.ExitCode != api.ExitRefused || !strings.Contains(
		result.Stderr, unknown) {
		t.Errorf("reload with an unknown type: %+v", result)
	}
	answers("second")
	stop()
	if result := r.RunOutrider("reload"); result.ExitCode != 0 {
		t.Errorf("reload without the server: %+v", result)
	}
	for _, start := range []func(){func() {}, func() { server.start(t, address) }} {
		r.Signal(daemon.Process.Pid, syscall.SIGTERM)
		daemon.Wait(t, time.Minute)
		server.requests.Store(0)
		start() // first without the server, then with the server, which has a third bootstrap
		daemon = r.StartReady()
		answers("second") // the bootstrap in the agent's cache
	}
	if got := server.requests.Load(); got != 1 {
		t.Errorf("a start requests the bootstrap %d times", got)
	}
}

func TestDynamicBootstrap_AnotherConfigurationEndsTheWait(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true, TOML: fmt.Sprintf("[discovery]\naddress = "+
		"\"127.0.0.1:%d\"\nauth = \"none\"\ndynamic_bootstrap = true\n", parts.FreePort(t))})
	r.Start()
	parts.Eventually(t, time.Minute, "the start waits", func() bool {
		return strings.Contains(r.RunOutrider("status").Stdout, "waiting for the bootstrap")
	})
	r.SetTOML("")
	r.WaitReady(20 * time.Second)
	parts.Eventually(t, time.Minute, "the condition is cleared", func() bool {
		var status api.Status
		r.RunOutriderJSON(&status, "status", "--json")
		return len(status.Conditions) == 0
	})
}
