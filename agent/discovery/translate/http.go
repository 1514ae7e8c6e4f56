package translate

import (
	"fmt"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
)

// serverName is the value of the server header in responses of Istio's proxies.
const serverName = "istio-envoy"

func httpFilter(name string, config proto.Message) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{
		TypedConfig: typed(config)}}
}

// managerOptions are the settings of a connection manager that depend on its listener.
type managerOptions struct {
	port    uint32 // port of the listener
	gateway bool   // the listener is a gateway's
	resolve bool   // hosts of requests are resolved for clusters with dynamic DNS
}

// connectionManager returns an HTTP connection manager that gets the named route configuration over
// RDS.
func connectionManager(routeName, statPrefix string, o managerOptions, m *mesh.Config,
	guards SecurityFilters, t *Telemetry) (*listenerv3.Filter, error) {
	manager := newManager(statPrefix, m, t)
	if o.resolve {
		resolveRequests(manager)
	}
	guards.addTo(manager, outbound(o.port))
	manager.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{
		Rds: &hcmv3.Rds{ConfigSource: adsSource(0), RouteConfigName: routeName}}
	if o.gateway {
		manager.XffNumTrustedHops = m.NumTrustedProxies
		manager.UseRemoteAddress = wrapperspb.Bool(true)
		manager.ServerName = serverName
		manager.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
		manager.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
			Subject: wrapperspb.Bool(true), Cert: true, Uri: true, Dns: true}
	} else {
		manager.ServerHeaderTransformation = hcmv3.HttpConnectionManager_PASS_THROUGH
	}
	return networkFilter(managerFilter, manager)
}

const managerFilter = "envoy.filters.network.http_connection_manager"

// newManager returns an HTTP connection manager with the settings that are common to all listeners.
func newManager(statPrefix string, m *mesh.Config, t *Telemetry) *hcmv3.HttpConnectionManager {
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix: mesh.DelimitedStatName(statPrefix),
		HttpFilters: []*hcmv3.HttpFilter{httpFilter(faultFilter, &faultv3.HTTPFault{}),
			httpFilter(corsFilter, &corsv3.CorsPolicy{}),
			httpFilter(routerFilter, &routerv3.Router{})},
		// as in Istio, requests have no idle timeout
		StreamIdleTimeout: durationpb.New(0),
		UseRemoteAddress:  wrapperspb.Bool(false),
		UpgradeConfigs:    []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
	}
	t.addTo(manager)
	normalizePath(manager, m.PathNormalization)
	return manager
}

// asServer sets what Istio sets for inbound connections: the server header of responses, and the
// client's certificate, which is appended to x-forwarded-client-cert.
func asServer(manager *hcmv3.HttpConnectionManager) {
	manager.ServerName = serverName
	manager.ForwardClientCertDetails = hcmv3.HttpConnectionManager_APPEND_FORWARD
	manager.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(true), Uri: true, Dns: true}
}

// withRoutes sets an inline route configuration of a connection manager.
func withRoutes(manager *hcmv3.HttpConnectionManager,
	routes *routev3.RouteConfiguration) (*listenerv3.Filter, error) {
	manager.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	return networkFilter(managerFilter, manager)
}

// normalizePath sets the normalization of paths, which happens before routing.
func normalizePath(manager *hcmv3.HttpConnectionManager,
	how meshapi.MeshConfig_ProxyPathNormalization_NormalizationType) {
	manager.NormalizePath = wrapperspb.Bool(how != meshapi.MeshConfig_ProxyPathNormalization_NONE)
	switch how {
	case meshapi.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES:
		manager.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
		manager.MergeSlashes = true
	case meshapi.MeshConfig_ProxyPathNormalization_MERGE_SLASHES:
		manager.MergeSlashes = true
	}
}

func networkFilter(name string, config validated) (*listenerv3.Filter, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("filter %s: %w", name, err)
	}
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{
		TypedConfig: typed(config)}}, nil
}
