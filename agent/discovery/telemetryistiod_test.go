package discovery_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	otellogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestTelemetry_AsWithIstiod translates telemetryCases with a real istiod and with this server. The
// access logs and the tracing of all listeners must be equal, except that this server sets a
// time-out for calls to log services and istiod does not.
func TestTelemetry_AsWithIstiod(t *testing.T) {
	t.Parallel()
	compared := 0
	for _, set := range telemetrySets {
		folder, config := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
		write(t, config, set.mesh)
		write(t, filepath.Join(folder, "services.yaml"), telemetryServices)
		write(t, filepath.Join(folder, "root.yaml"), telemetryObject("istio-system", 0, set.root))
		for i, specs := range telemetryCases {
			var text strings.Builder
			for j, spec := range specs {
				text.WriteString(telemetryObject(fmt.Sprint("n", i), j, "{"+spec+"}"))
			}
			write(t, filepath.Join(folder, fmt.Sprint("n", i, ".yaml")), text.String())
		}
		server, _ := start(t, discovery.Options{Files: []string{folder},
			Settings: discovery.Settings{MeshConfigFile: config}})
		istiod := dialIstiod(t, startIstiodPort(t, folder, set.mesh))
		for i, specs := range telemetryCases {
			for _, kind := range []string{"sidecar", "router"} {
				n := telemetryNode(kind, fmt.Sprint("n", i))
				feed, err := server.Feed(n)
				must(t, err)
				snapshot, _ := feed.Current()
				var own []proto.Message
				for _, r := range snapshot.ByType(resource.ListenerType) {
					l := &listenerv3.Listener{}
					must(t, proto.Unmarshal(r.EncodedMessage(), l))
					own = append(own, l)
				}
				want := telemetryOf(t, listenersOf(t, istiod, n))
				if d := cmp.Diff(want, telemetryOf(t, own)); d != "" || len(want) == 0 {
					t.Errorf("%s, %s, %s: -istiod +own\n%s", set.name, kind, specs, d)
				}
				compared++
			}
		}
	}
	t.Logf("%d configurations compared", compared)
}

func telemetryObject(namespace string, i int, spec string) string {
	if spec == "" {
		return ""
	}
	return fmt.Sprintf("apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: t%d, "+
		"namespace: %s, creationTimestamp: \"2026-01-01T00:00:%02dZ\"}\nspec: %s\n---\n", i, namespace,
		i, strings.ReplaceAll(spec, "\n", "\n  "))
}

// telemetryNode returns the node of a proxy in a namespace: of a sidecar with interception, or of a
// router.
func telemetryNode(kind, namespace string) *corev3.Node {
	n := node(kind, namespace, map[string]any{"app": "edge",
		"service.istio.io/canonical-name": "edge", "app.kubernetes.io/name": "named"})
	n.Cluster, n.Id = "edge."+namespace, strings.Replace(n.Id, "127.0.0.1", "10.255.0.1", 1)
	for key, value := range map[string]string{"ISTIO_VERSION": "1.31.0", "MESH_ID": "mesh",
		"CLUSTER_ID": "vm", "INTERCEPTION_MODE": "REDIRECT"} {
		n.Metadata.Fields[key] = structpb.NewStringValue(value)
	}
	return n
}

func dialIstiod(t *testing.T, port int) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient(fmt.Sprint("127.0.0.1:", port),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	must(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// listenersOf returns the listeners that a server sends for a node.
func listenersOf(t *testing.T, connection *grpc.ClientConn, n *corev3.Node) (all []proto.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		StreamAggregatedResources(ctx)
	must(t, err)
	must(t, stream.Send(&discoveryv3.DiscoveryRequest{Node: n, TypeUrl: resource.ListenerType}))
	response, err := stream.Recv()
	must(t, err)
	for _, r := range response.Resources {
		l := &listenerv3.Listener{}
		must(t, r.UnmarshalTo(l))
		all = append(all, l)
	}
	return all
}

// telemetryOf describes what listeners log and trace, by listener and filter. Equal filters of a
// listener are described once.
func telemetryOf(t *testing.T, listeners []proto.Message) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	add := func(name string, logs []*accesslogv3.AccessLog, more ...proto.Message) {
		var text strings.Builder
		for _, log := range logs {
			text.WriteString(logText(t, log))
		}
		for _, m := range more {
			text.WriteString(logText(t, m))
		}
		if !slices.Contains(found[name], text.String()) {
			found[name] = append(found[name], text.String())
			slices.Sort(found[name])
		}
	}
	for _, message := range listeners {
		l := message.(*listenerv3.Listener)
		if !slices.Contains([]string{"virtualInbound", "virtualOutbound", "0.0.0.0_80"}, l.Name) {
			continue
		}
		if strings.HasPrefix(l.Name, "virtual") {
			add(l.Name, l.AccessLog)
		}
		for _, chain := range append(l.FilterChains, l.DefaultFilterChain) {
			for _, f := range chain.GetFilters() {
				manager, proxy := &hcmv3.HttpConnectionManager{}, &tcpproxyv3.TcpProxy{}
				switch {
				case f.GetTypedConfig().UnmarshalTo(manager) == nil:
					add(l.Name+" requests", manager.AccessLog, manager.Tracing)
					// without tracing, the extension for request IDs has no effect
					if manager.Tracing != nil {
						add(l.Name+" IDs", nil, manager.RequestIdExtension)
					}
				// only the virtual listeners: in others, istiod adds a chain for connections that
				// are not HTTP
				case strings.HasPrefix(l.Name, "virtual") && f.GetTypedConfig().UnmarshalTo(proxy) == nil:
					add(l.Name+" connections", proxy.AccessLog)
				}
			}
		}
	}
	return found
}

// withoutTimeout removes the time-out of calls to a service, which only this server sets.
func withoutTimeout(service *corev3.GrpcService) {
	if service.Timeout.GetSeconds() == 5 {
		service.Timeout = nil
	}
	service.InitialMetadata = slices.DeleteFunc(service.InitialMetadata,
		func(h *corev3.HeaderValue) bool { return h.Key == "x-envoy-upstream-rq-timeout-ms" })
	if len(service.InitialMetadata) == 0 {
		service.InitialMetadata = nil
	}
}

// logText returns the JSON of a message without the time-outs that only this server sets.
func logText(t *testing.T, m proto.Message) string {
	t.Helper()
	if log, ok := m.(*accesslogv3.AccessLog); ok {
		config := &otellogv3.OpenTelemetryAccessLogConfig{}
		if log.GetTypedConfig().UnmarshalTo(config) == nil {
			withoutTimeout(config.CommonConfig.GrpcService) //nolint:staticcheck // istiod's form
			packed, err := anypb.New(config)
			must(t, err)
			m = &accesslogv3.AccessLog{Name: log.Name, Filter: log.Filter,
				ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: packed}}
		}
	}
	if tracing, ok := m.(*hcmv3.HttpConnectionManager_Tracing); ok && tracing.GetProvider() != nil {
		config := &tracev3.OpenTelemetryConfig{}
		if tracing.Provider.GetTypedConfig().UnmarshalTo(config) == nil && config.GrpcService != nil {
			withoutTimeout(config.GrpcService)
			packed, err := anypb.New(config)
			must(t, err)
			tracing.Provider.ConfigType = &tracev3.Tracing_Http_TypedConfig{TypedConfig: packed}
		}
	}
	text, err := protojson.Marshal(m)
	must(t, err)
	compact := strings.ReplaceAll(string(text), " ", "") // protojson's spaces vary
	// empty options are the default
	return strings.ReplaceAll(compact, `,"jsonFormatOptions":{}`, "") + "\n"
}
