package xds

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/resource"
)

// wildcard is the name by which a client subscribes to all resources of a type.
const wildcard = "*"

// request is a decoded DiscoveryRequest or DeltaDiscoveryRequest.
type request struct {
	node    *corev3.Node
	typeURL string
	nonce   string           // nonce of the response that the request answers; "": none
	refusal *statusv3.Status // why the client refuses that response; nil if it accepts it
	// number of xdstp resource locators, which the server does not support
	locators int

	names []string // state of the world: all names that the client subscribes to

	subscribe, unsubscribe []string // incremental: names to add to and remove from the subscription
	// incremental: versions by name of resources that the client has from an earlier stream
	versions map[string]string
}

// nodeOf returns the node of a request without its list of extensions: these are 40 KB that are not
// used and would be retained as long as the stream.
func nodeOf(r interface{ GetNode() *corev3.Node }) *corev3.Node {
	node := r.GetNode()
	if node != nil {
		node.Extensions = nil
	}
	return node
}

func fromState(r *discoveryv3.DiscoveryRequest) *request {
	return &request{
		node: nodeOf(r), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(),
		refusal:  r.GetErrorDetail(),
		locators: len(r.GetResourceLocators()), names: r.GetResourceNames(),
	}
}

func fromDelta(r *discoveryv3.DeltaDiscoveryRequest) *request {
	return &request{
		node: nodeOf(r), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(),
		refusal:   r.GetErrorDetail(),
		locators:  len(r.GetResourceLocatorsSubscribe()) + len(r.GetResourceLocatorsUnsubscribe()),
		subscribe: r.GetResourceNamesSubscribe(), unsubscribe: r.GetResourceNamesUnsubscribe(),
		versions: r.GetInitialResourceVersions(),
	}
}

// limits bounds what one stream may request, and so the memory that it uses.
type limits struct {
	types     int // maximum number of types on one stream
	nameBytes int // maximum length of one name in bytes
	bytes     int // total length of the names that one stream subscribes to
}

// check returns a gRPC status if a request is malformed or exceeds a limit.
func (l limits) check(r *request) error {
	if r.typeURL == "" {
		return status.Error(codes.InvalidArgument, "the request has no type_url")
	}
	if len(r.typeURL) > l.nameBytes || len(r.nonce) > l.nameBytes {
		return status.Errorf(codes.InvalidArgument,
			"type_url or response_nonce is longer than %d bytes", l.nameBytes)
	}
	if r.locators > 0 {
		return status.Errorf(codes.Unimplemented,
			"%s: resource locators (xdstp:) are not offered: ask by resource name", r.typeURL)
	}
	for _, names := range [][]string{r.names, r.subscribe, r.unsubscribe} {
		for _, name := range names {
			if err := l.checkName(r.typeURL, name); err != nil {
				return err
			}
		}
	}
	for name, version := range r.versions {
		if err := l.checkName(r.typeURL, name); err != nil {
			return err
		}
		if len(version) > l.nameBytes {
			return status.Errorf(codes.InvalidArgument,
				"%s: the version of %q is longer than %d bytes", r.typeURL, name, l.nameBytes)
		}
	}
	return nil
}

func (l limits) checkName(typeURL, name string) error {
	if len(name) > l.nameBytes {
		return status.Errorf(codes.InvalidArgument,
			"%s: the resource name %.40q… is longer than %d bytes", typeURL, name, l.nameBytes)
	}
	return nil
}

// startsAsWildcard reports whether a first request without names subscribes to all resources of a
// type. For endpoints, routes, secrets and extensions it subscribes to none.
func startsAsWildcard(typeURL string) bool {
	switch typeURL {
	case resource.EndpointType, resource.RouteType, resource.SecretType, resource.ExtensionType,
		resource.RuntimeType, resource.VirtualHostType:
		return false
	}
	return true
}

// carriesFullState reports whether a state-of-the-world response must have all resources of a type,
// because the client removes those that are missing. Envoy does so for clusters and listeners,
// discovery servers for kinds of objects (networking.istio.io/v1/Gateway).
func carriesFullState(typeURL string) bool {
	return typeURL == resource.ClusterType || typeURL == resource.ListenerType ||
		!strings.HasPrefix(typeURL, resource.TypePrefix)
}

// rank returns the position of a type in the order of sending: resources are sent before those that
// refer to them. Types of rank 0 are sent at once, because Envoy's clusters and listeners wait for
// their secrets and extensions.
func rank(typeURL string) int {
	switch typeURL {
	case resource.ClusterType:
		return 1
	case resource.EndpointType:
		return 2
	case resource.ListenerType:
		return 3
	case resource.RouteType:
		return 4
	}
	return 0
}
