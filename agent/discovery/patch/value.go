package patch

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// newValue returns an empty message of the type of a patch's value; nil if values of this kind are
// unknown.
func newValue(to applyTo) proto.Message {
	switch to {
	case networking.EnvoyFilter_LISTENER:
		return &listenerv3.Listener{}
	case networking.EnvoyFilter_FILTER_CHAIN:
		return &listenerv3.FilterChain{}
	case networking.EnvoyFilter_LISTENER_FILTER:
		return &listenerv3.ListenerFilter{}
	case networking.EnvoyFilter_NETWORK_FILTER:
		return &listenerv3.Filter{}
	case networking.EnvoyFilter_HTTP_FILTER:
		return &hcmv3.HttpFilter{}
	case networking.EnvoyFilter_ROUTE_CONFIGURATION:
		return &routev3.RouteConfiguration{}
	case networking.EnvoyFilter_VIRTUAL_HOST:
		return &routev3.VirtualHost{}
	case networking.EnvoyFilter_HTTP_ROUTE:
		return &routev3.Route{}
	case networking.EnvoyFilter_CLUSTER:
		return &clusterv3.Cluster{}
	case networking.EnvoyFilter_EXTENSION_CONFIG:
		return &corev3.TypedExtensionConfig{}
	}
	return nil
}

// build decodes the value of a patch, without unknown fields. It also returns the findings, with
// the paths of their fields, and the packed messages that only Envoy can decode. The message is nil
// if any finding is an error other than UnknownField.
func build(to applyTo, value *structpb.Struct, path string) (proto.Message, []object.Finding,
	[]store.UnlinkedMessage) {
	message := newValue(to)
	if message == nil {
		return nil, []object.Finding{{Field: path, Severity: condition.Error,
			Message: fmt.Sprintf("Envoy has no %s", to)}}, nil
	}
	findings, unlinked := store.DecodeEnvoyMessage(value.AsMap(), message, path)
	if slices.ContainsFunc(findings, func(f object.Finding) bool {
		return f.Severity == condition.Error && !f.UnknownField
	}) {
		return nil, findings, nil
	}
	return message, findings, unlinked
}

// typeName returns the name of the message in a type URL.
func typeName(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }
