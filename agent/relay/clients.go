package relay

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	xdsresource "outrider.org/outrider/agent/resource"
)

// Types that clients may request. istiod would answer requests of other types, such as debug
// information, as if this host's agent had sent them. Requests of the agent itself are not
// restricted.
var (
	grpcTypes = []string{xdsresource.ListenerType, xdsresource.RouteType,
		xdsresource.ClusterType, xdsresource.EndpointType}
	envoyTypes = append([]string{xdsresource.ExtensionType, xdsresource.SecretType,
		xdsresource.TypePrefix + "envoy.config.listener.v3.ListenerCollection",
		xdsresource.TypePrefix + "envoy.config.cluster.v3.ClusterCollection",
		xdsresource.TypePrefix + "envoy.extensions.filters.network.thrift_proxy.v3.RouteConfiguration",
		xdsresource.TypePrefix + "envoy.config.endpoint.v3.LbEndpoint",
		xdsresource.TypePrefix + "envoy.config.route.v3.ScopedRouteConfiguration", xdsresource.VirtualHostType,
		xdsresource.RuntimeType}, grpcTypes...)
)

// allow returns an error if the session's client may not request a type.
func (s *session) allow(typeURL string) error {
	allowed := envoyTypes
	if s.share == s.server.others {
		// applications receive no secrets: the agent sends secrets only over Envoy's socket
		allowed = grpcTypes
	}
	if slices.Contains(allowed, typeURL) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied,
		"the type %.200q is not passed to the upstream server", typeURL)
}

// identify sets the session's node from a request. If the agent has a bootstrap for applications,
// all applications get the node of that bootstrap instead of the node in their request.
func (s *session) identify(r *request) error {
	if r.node == nil {
		if s.node == nil {
			return status.Error(codes.InvalidArgument, "the first request must carry the node")
		}
		return nil
	}
	if proto.Size(r.node) > maxNodeBytes {
		return status.Errorf(codes.ResourceExhausted, "a node of more than %d KB",
			maxNodeBytes>>10)
	}
	var application *corev3.Node
	if s.share == s.server.others && s.server.options.ApplicationNode != nil {
		application = s.server.options.ApplicationNode()
	}
	if application != nil {
		r.node.Id, r.node.Cluster = application.Id, application.Cluster
		r.node.Metadata, r.node.Locality = application.Metadata, application.Locality
		if err := r.replaceNode(s.delta); err != nil {
			return err
		}
	}
	if s.node == nil {
		s.node, s.own = r.node, s.share == s.server.envoys || application != nil
	}
	return nil
}

// cache returns the cache for the session's node; nil if the resources of this client are not
// cached.
func (s *session) cache() *Cache {
	if !s.own {
		return nil
	}
	return s.server.options.Cache
}
