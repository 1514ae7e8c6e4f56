package debug

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/resource"
)

// node returns the node of a connected proxy, identified by its ID or by NAME.NAMESPACE.
func (d *Debugger) node(ctx context.Context, proxy string) (*corev3.Node, error) {
	for _, stream := range d.proxies(ctx) {
		// istioctl sends NAME.NAMESPACE, the third part of the ID
		if parts := strings.Split(stream.Node.GetId(), "~"); proxy == stream.Node.GetId() ||
			len(parts) == 4 && proxy == parts[2] {
			return stream.Node, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "proxy %q is not connected to this server: set proxyID",
		proxy)
}

// snapshot returns the resources that the server serves to a connected proxy.
func (d *Debugger) snapshot(ctx context.Context, proxy string) (*resource.Snapshot, error) {
	node, err := d.node(ctx, proxy)
	if err != nil {
		return nil, err
	}
	feed, err := d.options.Discovery.Feed(node)
	if err != nil {
		return nil, err
	}
	snapshot, _ := feed.Current()
	return snapshot, nil
}

// sorted returns the resources of a type, sorted by name.
func sorted(snapshot *resource.Snapshot, typeURL string) (all []*resource.Resource) {
	set := snapshot.ByType(typeURL)
	for _, name := range slices.Sorted(maps.Keys(set)) {
		all = append(all, set[name])
	}
	return all
}

func encoded(r *resource.Resource) *anypb.Any {
	return &anypb.Any{TypeUrl: r.Type, Value: r.EncodedMessage()}
}

// dump returns the messages of a configuration dump like Envoy's: clusters, listeners, routes and,
// if endpoints is set, endpoints. It omits secrets.
func dump(snapshot *resource.Snapshot, endpoints bool) []proto.Message {
	clusters, listeners, routes := &adminv3.ClustersConfigDump{}, &adminv3.ListenersConfigDump{},
		&adminv3.RoutesConfigDump{}
	for _, r := range sorted(snapshot, resource.ClusterType) {
		clusters.DynamicActiveClusters = append(clusters.DynamicActiveClusters,
			&adminv3.ClustersConfigDump_DynamicCluster{VersionInfo: r.Version, Cluster: encoded(r)})
	}
	for _, r := range sorted(snapshot, resource.ListenerType) {
		listeners.DynamicListeners = append(listeners.DynamicListeners,
			&adminv3.ListenersConfigDump_DynamicListener{Name: r.Name,
				ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{
					VersionInfo: r.Version, Listener: encoded(r)}})
	}
	for _, r := range sorted(snapshot, resource.RouteType) {
		routes.DynamicRouteConfigs = append(routes.DynamicRouteConfigs,
			&adminv3.RoutesConfigDump_DynamicRouteConfig{VersionInfo: r.Version,
				RouteConfig: encoded(r)})
	}
	all := []proto.Message{clusters, listeners, routes}
	if endpoints {
		of := &adminv3.EndpointsConfigDump{}
		for _, r := range sorted(snapshot, resource.EndpointType) {
			of.DynamicEndpointConfigs = append(of.DynamicEndpointConfigs,
				&adminv3.EndpointsConfigDump_DynamicEndpointConfig{VersionInfo: r.Version,
					EndpointConfig: encoded(r)})
		}
		all = append(all, of)
	}
	return all
}

// dumpParts returns the messages of a proxy's configuration dump as resources for istioctl.
func (d *Debugger) dumpParts(ctx context.Context, proxy string) ([]*resource.Resource, error) {
	snapshot, err := d.snapshot(ctx, proxy)
	if err != nil {
		return nil, err
	}
	var all []*resource.Resource
	for _, part := range dump(snapshot, false) {
		r, err := resource.New("", part)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		all = append(all, r)
	}
	return all, nil
}

func (d *Debugger) configDump(ctx context.Context, query url.Values) (any, error) {
	snapshot, err := d.snapshot(ctx, query.Get("proxyID"))
	if err != nil {
		return nil, err
	}
	var configs []json.RawMessage
	for _, part := range dump(snapshot, query.Has("include_eds")) {
		text, err := toJSON(part)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		configs = append(configs, text)
	}
	return map[string]any{"configs": configs}, nil
}

func (d *Debugger) endpoints(ctx context.Context, query url.Values) (any, error) {
	snapshot, err := d.snapshot(ctx, query.Get("proxyID"))
	if err != nil {
		return nil, err
	}
	all := []json.RawMessage{}
	for _, r := range sorted(snapshot, resource.EndpointType) {
		text, err := toJSON(encoded(r))
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		all = append(all, text)
	}
	return all, nil
}

// toJSON encodes a message with its type, as Envoy's admin interface does.
func toJSON(message proto.Message) (json.RawMessage, error) {
	wrapped, ok := message.(*anypb.Any)
	if !ok {
		wrapped = &anypb.Any{}
		if err := wrapped.MarshalFrom(message); err != nil {
			return nil, err
		}
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(wrapped)
}
