package discovery_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

// serveApart starts a server with one file for each object. The names of the files determine the
// order of the objects: as in the configuration, or reversed.
func (c configuration) serveApart(t *testing.T, reverse bool) *discovery.Server {
	t.Helper()
	directory, objects := t.TempDir(), strings.Split(c.mesh, "\n---\n")
	for i, object := range objects {
		if reverse {
			i = len(objects) - i
		}
		write(t, filepath.Join(directory, fmt.Sprintf("%03d.yaml", i)), object)
	}
	settings := discovery.Settings{}
	if c.meshConfig != "" {
		settings.MeshConfigFile = filepath.Join(t.TempDir(), "mesh")
		write(t, settings.MeshConfigFile, c.meshConfig)
	}
	server, _ := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop",
		SystemRoots: "/etc/ssl/certs/ca-certificates.crt", Settings: settings})
	return server
}

// versionsOf returns the versions of all resources by type, then by name.
func versionsOf(feed *resource.Feed) map[string]map[string]string {
	snapshot, _ := feed.Current()
	all := map[string]map[string]string{}
	for _, typeURL := range snapshot.Types() {
		all[typeURL] = map[string]string{}
		for name, r := range snapshot.ByType(typeURL) {
			all[typeURL][name] = r.Version
		}
	}
	return all
}

// TestMove_VersionsAreThoseOfOtherServers: servers that read the same objects in another order have
// the same resources with the same versions, so that proxies can move between them.
func TestMove_VersionsAreThoseOfOtherServers(t *testing.T) {
	eachGolden(t, func(t *testing.T, _ string, archive *txtar.Archive) {
		c := goldenConfiguration(archive)
		first := versions(feedOf(t, c.serveApart(t, false), c.kind))
		second := versions(feedOf(t, c.serveApart(t, true), c.kind))
		if diff := cmp.Diff(first, second); diff != "" {
			t.Errorf("-one +another: %s", diff)
		}
	})
}

// moved opens a stream of a client that already has resources, and returns the names of those that
// the server sends.
func moved(t *testing.T, server *discovery.Server, held map[string]map[string]string) []string {
	t.Helper()
	streams, err := xds.NewServer(xds.Options{Source: server})
	if err != nil {
		t.Fatal(err)
	}
	bound, err := xds.Listen(xds.ListenOptions{Path: filepath.Join(parts.ShortDir(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- streams.Serve(ctx, bound) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	connection, err := grpc.NewClient("unix://"+bound.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	types := []string{resource.ClusterType, resource.EndpointType, resource.RouteType,
		resource.ListenerType}
	for _, typeURL := range types {
		request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, Node: node("sidecar", "shop",
			map[string]any{"app": "edge"}), InitialResourceVersions: held[typeURL]}
		if typeURL == resource.EndpointType || typeURL == resource.RouteType {
			request.ResourceNamesSubscribe = slices.Collect(maps.Keys(held[typeURL]))
		}
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for { // the answer about listeners is sent last, even if it is empty
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range answer.Resources {
			names = append(names, r.Name)
		}
		names = append(names, answer.RemovedResources...)
		if answer.TypeUrl == resource.ListenerType {
			return names
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: answer.TypeUrl,
			ResponseNonce: answer.Nonce}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMove_SendsWhatTheProxyHasNot: a proxy that moves to another server receives no resource that
// it already has. It receives the resources that it refused before.
func TestMove_SendsWhatTheProxyHasNot(t *testing.T) {
	var mesh []string
	for _, name := range []string{"one", "two"} {
		mesh = append(mesh, fmt.Sprintf(webEntry, name, "10.0.0.1"), fmt.Sprintf(webRule, name,
			"RANDOM"))
	}
	c := configuration{mesh: strings.Join(mesh, "\n---\n")}
	held := versionsOf(feedOf(t, c.serveApart(t, false), "sidecar"))
	if len(held[resource.ClusterType]) < 4 || len(held[resource.EndpointType]) < 4 {
		t.Fatalf("too few resources: %v", held)
	}
	second := c.serveApart(t, true)
	if names := moved(t, second, held); len(names) > 0 {
		t.Errorf("sent again: %v", names)
	}
	const refused = "outbound|80|v1|two.test"
	if _, ok := held[resource.ClusterType][refused]; !ok {
		t.Fatalf("no %s in %v", refused, held[resource.ClusterType])
	}
	delete(held[resource.ClusterType], refused)
	if names := moved(t, second, held); !slices.Equal(names, []string{refused}) {
		t.Errorf("sent %v, want what was refused", names)
	}
}
