package discovery_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

// proxy is an xDS client that refuses some resources, like an Envoy whose version does not support
// certain fields. A real Envoy does not exist for every case.
type proxy struct {
	t       *testing.T
	node    *corev3.Node
	refuses func(r *resource.Resource) bool
	stream  discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	cancel  func()
	done    chan struct{}

	mu       sync.Mutex
	held     map[resource.Key]*resource.Resource
	wanted   map[resource.Key]bool // names that the proxy subscribes to
	refusals int
}

// fleet serves the resources of a discovery server to proxies.
type fleet struct {
	t      *testing.T
	server *discovery.Server
	socket string
}

func serveFleet(t *testing.T, server *discovery.Server) *fleet {
	t.Helper()
	ads, err := xds.NewServer(xds.Options{Source: server})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t, server, parts.ShortDir(t) + "/xds.sock"}
	listener, err := xds.Listen(xds.ListenOptions{Path: f.socket})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- ads.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return f
}

// withVersion returns a node with a minor version of Envoy.
func withVersion(node *corev3.Node, minor uint32) *corev3.Node {
	node = proto.Clone(node).(*corev3.Node)
	node.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{
		UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor}}}
	return node
}

// connect starts a proxy that runs until the test ends or its end is called. It refuses the
// resources for which refuses returns true.
func (f *fleet) connect(node *corev3.Node, refuses func(*resource.Resource) bool) *proxy {
	f.t.Helper()
	connection, err := grpc.NewClient("unix:"+f.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &proxy{t: f.t, node: node, refuses: refuses, done: make(chan struct{}),
		held: map[resource.Key]*resource.Resource{}, wanted: map[resource.Key]bool{}}
	p.cancel = func() { cancel(); <-p.done; _ = connection.Close() }
	f.t.Cleanup(p.cancel)
	if p.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		DeltaAggregatedResources(ctx); err != nil {
		f.t.Fatal(err)
	}
	p.send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: resource.ClusterType})
	p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ListenerType})
	go p.run()
	return p
}

func (p *proxy) send(r *discoveryv3.DeltaDiscoveryRequest) { _ = p.stream.Send(r) }

func (p *proxy) run() {
	defer close(p.done)
	for {
		r, err := p.stream.Recv()
		if err != nil {
			return
		}
		p.answer(r)
	}
}

func (p *proxy) answer(r *discoveryv3.DeltaDiscoveryResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
	var all []*resource.Resource
	var bad []string
	for _, one := range r.Resources {
		made := resource.FromEncoded(r.TypeUrl, one.Name, one.Resource.GetValue())
		if all = append(all, made); p.refuses(made) {
			bad = append(bad, one.Name+": bad")
		}
	}
	if len(bad) > 0 {
		p.refusals++
		answer.ErrorDetail = &statusv3.Status{Code: 13,
			Message: "Error adding/updating resource(s) " + strings.Join(bad, ", ")}
		p.send(answer)
		return
	}
	p.send(answer)
	for _, one := range all {
		p.held[one.Key()] = one
		switch r.TypeUrl {
		case resource.ClusterType:
			p.want(resource.EndpointType, one.Name)
		case resource.ListenerType:
			for _, name := range routesOf(one) {
				p.want(resource.RouteType, name)
			}
		}
	}
	for _, name := range r.RemovedResources {
		delete(p.held, resource.Key{Type: r.TypeUrl, Name: name})
	}
}

func (p *proxy) want(typeURL, name string) {
	if key := (resource.Key{Type: typeURL, Name: name}); !p.wanted[key] {
		p.wanted[key] = true
		p.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL,
			ResourceNamesSubscribe: []string{name}})
	}
}

// routesOf returns the names of the route configurations to which a listener refers.
func routesOf(r *resource.Resource) (names []string) {
	var listener listenerv3.Listener
	_ = proto.Unmarshal(r.EncodedMessage(), &listener)
	chains := listener.FilterChains
	if listener.DefaultFilterChain != nil {
		chains = append(chains, listener.DefaultFilterChain)
	}
	for _, chain := range chains {
		for _, filter := range chain.Filters {
			var manager hcmv3.HttpConnectionManager
			if filter.GetTypedConfig().UnmarshalTo(&manager) == nil && manager.GetRds() != nil {
				names = append(names, manager.GetRds().RouteConfigName)
			}
		}
	}
	return names
}

// refused returns the number of responses that the proxy has refused.
func (p *proxy) refused() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refusals
}

// versions returns the versions of the proxy's resources, by key.
func (p *proxy) versions() map[resource.Key]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[resource.Key]string{}
	for key, r := range p.held {
		all[key] = r.Version
	}
	return all
}

func (p *proxy) get(typeURL, name string) *resource.Resource {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[resource.Key{Type: typeURL, Name: name}]
}

// has waits until the proxy has the wanted versions, and every resource to which its resources
// refer.
func (p *proxy) has(what string, want map[resource.Key]string) {
	p.t.Helper()
	eventually(p.t, what, func() (bool, string) {
		got := p.versions()
		if maps.Equal(got, want) {
			return true, ""
		}
		var all []string
		for key, version := range want {
			if got[key] != version {
				all = append(all, fmt.Sprintf("want %s %s", key.Name, version))
			}
		}
		for key, version := range got {
			if want[key] != version {
				all = append(all, fmt.Sprintf("has %s %s", key.Name, version))
			}
		}
		slices.Sort(all)
		return false, strings.Join(all, "\n")
	})
}

// newestFor returns the newest versions for a node.
func newestFor(t *testing.T, server *discovery.Server, node *corev3.Node) map[resource.Key]string {
	t.Helper()
	feed, err := server.Feed(node)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, _ := feed.Current()
	all := map[resource.Key]string{}
	for _, kind := range []string{resource.ClusterType, resource.EndpointType, resource.ListenerType,
		resource.RouteType} {
		for _, r := range snapshot.ByType(kind) {
			all[r.Key()] = r.Version
		}
	}
	return all
}

func textValue(text string) *structpb.Value { return structpb.NewStringValue(text) }
