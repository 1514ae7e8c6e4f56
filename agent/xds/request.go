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
	nonce   string // nonce of the response that the request answers; "": none
	// why the client refuses the response with this nonce; nil: it accepts the response
	refusal *statusv3.Status
	// number of xdstp resource locators in the request, which the server does not support
	locators int

	names []string // state of the world: all names that the client subscribes to

	// incremental: names that are added to and removed from the subscription
	subscribe, unsubscribe []string
	// incremental: versions of the resources that the client has from an earlier stream, by name;
	// see deltaRequest.versions
	versions map[string]string
}

// nodeOf returns the node of a request without its list of extensions. The list has about 40 KB, is
// not used, and would be retained as long as the stream.
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

func fromDelta(r *deltaRequest) *request {
	return &request{
		node: nodeOf(r), typeURL: r.GetTypeUrl(), nonce: r.GetResponseNonce(),
		refusal:   r.GetErrorDetail(),
		locators:  len(r.GetResourceLocatorsSubscribe()) + len(r.GetResourceLocatorsUnsubscribe()),
		subscribe: r.GetResourceNamesSubscribe(), unsubscribe: r.GetResourceNamesUnsubscribe(),
		versions: r.versions,
	}
}

// limits bounds the memory that the requests of one stream occupy.
type limits struct {
	types     int // maximum number of types on one stream
	nameBytes int // maximum length of one name in bytes
	bytes     int // maximum total length of the names to which one stream subscribes, in bytes
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

// startsAsWildcard reports whether a type's first request, if it contains no names, subscribes to
// all resources of the type.
func startsAsWildcard(typeURL string) bool {
	switch typeURL {
	case resource.EndpointType, resource.RouteType, resource.SecretType, resource.ExtensionType,
		resource.RuntimeType, resource.VirtualHostType:
		return false
	}
	return true
}

// carriesFullState reports whether a state-of-the-world response must contain all resources of a
// type, because the client removes those that are missing. Envoy does this for clusters and
// listeners, and discovery servers for kinds of configuration objects
// (networking.istio.io/v1/Gateway).
func carriesFullState(typeURL string) bool {
	return typeURL == resource.ClusterType || typeURL == resource.ListenerType ||
		!strings.HasPrefix(typeURL, resource.TypePrefix)
}

// rank returns the position of a type in the order of sending: resources are sent before those that
// refer to them. Types of rank 0 never wait for others, because Envoy's clusters and listeners wait
// for their secrets and extensions.
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
