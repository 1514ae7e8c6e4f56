package translate

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/resource"
)

// InboundListener is a port of this machine for which the proxy accepts connections.
type InboundListener struct {
	Port     uint32 // destination port of the connections
	Name     string
	Protocol model.Protocol
	// address of the port's own listener; "": the port accepts captured connections only
	Bind string
	// IP:port or unix:///path of the application; "": the original destination of a connection
	Endpoint string
	// TLS settings of a Sidecar's ingress listener, by which the proxy terminates TLS; nil: none
	TLS *networking.ServerTLSSettings
	// mode of mutual TLS of the mesh; without effect if TLS is set
	MutualTLSMode   model.MutualTLSMode
	HasMeshIdentity bool // the proxy has a certificate of the mesh
	SecurityFilters SecurityFilters
	// logs and traces of the port's filters
	Telemetry Telemetry
	// PortUndeclared reports whether no service declares the port. If Port is 0, the
	// InboundListener is for all undeclared ports.
	PortUndeclared bool
	Service        string // host of the service that has the port; "": none
	SpanName       string // name of the spans of requests; "": SpanName("", 0)
	Metrics        *Metrics
	// limits of connections to the application; nil: no limits
	ConnectionPool *networking.ConnectionPoolSettings
}

// inboundClusterName returns Istio's name of an inbound cluster: inbound|8080||.
func inboundClusterName(port uint32) string { return fmt.Sprintf("inbound|%d||", port) }

// passthroughSource is the source address of Envoy's connections to the original destination.
// Interception does not capture connections from this address. The value is Istio's.
const passthroughSource = "127.0.0.6"

// passthroughSource6 is passthroughSource for IPv6. Istio's ::6 would have to be an address of the
// host.
const passthroughSource6 = "::1"

// Cluster returns the cluster that forwards to the application.
func (in InboundListener) Cluster(m *mesh.Config, node model.Node,
	origins ...resource.Origin) (*resource.Resource, error) {
	d := &draft{Cluster: &clusterv3.Cluster{Name: inboundClusterName(in.Port)}, mesh: m,
		protocol: in.ProtocolInsideTLS(), policy: policy{pool: in.ConnectionPool}}
	d.applyPool()
	c := d.finish()
	if in.Endpoint == "" {
		toOriginalDestination(c, node)
		return resource.New(c.Name, c, origins...)
	}
	address, err := parseEndpoint(in.Endpoint)
	if err != nil {
		return nil, err
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.Name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{
				{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
					Address: address}}}}}}}
	return resource.New(c.Name, c, origins...)
}

// toOriginalDestination makes a cluster forward to the application that was the destination of a
// captured connection.
func toOriginalDestination(c *clusterv3.Cluster, node model.Node) {
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
	c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
	if node.Interception == model.Redirect { // with TPROXY the client's source address is retained
		c.UpstreamBindConfig = &corev3.BindConfig{SourceAddress: &corev3.SocketAddress{
			Address:       passthroughSource,
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}}
		if node.IPv6 {
			c.UpstreamBindConfig.ExtraSourceAddresses = []*corev3.ExtraSourceAddress{{
				Address: &corev3.SocketAddress{Address: passthroughSource6,
					PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}}}
		}
	}
}

func parseEndpoint(text string) (*corev3.Address, error) {
	if path, ok := strings.CutPrefix(text, model.UnixScheme); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", text, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", text, err)
	}
	return socketAddress(host, uint32(number)), nil
}

// ProtocolInsideTLS returns the protocol of the connection inside of TLS.
func (in InboundListener) ProtocolInsideTLS() model.Protocol {
	if in.TLS != nil && in.Protocol == model.TLS {
		return model.HTTP
	}
	return in.Protocol
}

// chainName returns Istio's name of a filter chain, which is the name of the port's listener.
func (in InboundListener) chainName(http bool) string {
	switch {
	case in.PortUndeclared && http:
		return virtualInbound + "-catchall-http"
	case in.PortUndeclared:
		return virtualInbound
	}
	return ListenerName(cmp.Or(in.Bind, anyIPv4), in.Port)
}

// Listener returns the listener that is bound to the port.
func (in InboundListener) Listener(m *mesh.Config, origins ...resource.Origin) (*resource.Resource,
	error) {
	chains, err := in.chains(m, false)
	if err != nil {
		return nil, err
	}
	l := newListener(in.Bind, in.Port, chains...)
	l.TrafficDirection = corev3.TrafficDirection_INBOUND
	inspect(l, m)
	in.Telemetry.unmatched(l)
	return resource.New(l.Name, l, append(origins, in.Telemetry.Origins...)...)
}

// CheckListener returns an error if Envoy would refuse the port's listener.
func (in InboundListener) CheckListener(m *mesh.Config) error {
	_, err := in.chains(m, true)
	return err
}

// chains returns the filter chains of the port. If captured is set, they also match the destination
// port.
func (in InboundListener) chains(m *mesh.Config, captured bool) ([]*listenerv3.FilterChain, error) {
	port := in.Port
	if !captured {
		port = 0
	}
	if in.RefusesAllConnections() {
		chain, err := blackHole(&in.Telemetry, in.chainName(false), port)
		return []*listenerv3.FilterChain{chain}, err
	}
	var chains []*listenerv3.FilterChain
	for _, a := range in.accepts() {
		chain := &listenerv3.FilterChain{Name: in.chainName(a.http),
			FilterChainMatch: a.match(port)}
		var err error
		if chain.Filters, err = in.filters(m, a.http); err != nil {
			return nil, err
		}
		if err := in.Metrics.addTo(chain, in.stream(a)); err != nil {
			return nil, err
		}
		if a.ends {
			context := mutualTLS(m)
			if in.TLS != nil {
				context = downstreamTLS(in.TLS, m)
			}
			if err := context.Validate(); err != nil {
				return nil, fmt.Errorf("TLS of port %d: %w", in.Port, err)
			}
			chain.TransportSocket = tlsSocket(context)
		}
		chains = append(chains, chain)
	}
	return chains, nil
}

// stream describes one kind of the port's connections for labels of metrics.
func (in InboundListener) stream(a accepted) stream {
	at := stream{service: in.Service}
	switch {
	case a.ends && in.TLS != nil:
		at.identities = otherIdentities
	case a.ends:
		at.identities = meshIdentities
	}
	return at
}

// filters returns the network filters of a filter chain. The last one forwards.
func (in InboundListener) filters(m *mesh.Config, http bool) ([]*listenerv3.Filter, error) {
	cluster := inboundClusterName(in.Port)
	if in.PortUndeclared {
		cluster = InboundPassthroughCluster
	}
	if http {
		manager, err := in.manager(m, cluster)
		return in.SecurityFilters.Extensions.beforeRequests(inbound(in.Port), manager), err
	}
	forward, err := passOn(&in.Telemetry, cluster)
	return in.SecurityFilters.before(inbound(in.Port), forward), err
}

// manager returns an HTTP connection manager that sends every request to one cluster. As in Istio,
// it retries requests that failed because the application had just closed the connection.
func (in InboundListener) manager(m *mesh.Config, cluster string) (*listenerv3.Filter, error) {
	port, portName, statPrefix := in.Port, in.Name, "inbound_"+in.chainName(true)
	if in.PortUndeclared {
		port, portName, statPrefix = 0, "http", cluster
	}
	manager := newManager(statPrefix, m, &in.Telemetry)
	// remove the filters for faults and CORS, which only outbound routes configure
	manager.HttpFilters = manager.HttpFilters[len(manager.HttpFilters)-1:]
	in.SecurityFilters.addTo(manager, inbound(in.Port))
	asServer(manager)
	route := &routev3.Route{Name: "default", Match: everything(),
		Decorator: &routev3.Decorator{Operation: cmp.Or(in.SpanName, SpanName("", 0))}, Action: &routev3.Route_Route{
			Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
				Timeout:          durationpb.New(0),
				RetryPolicy: &routev3.RetryPolicy{RetryOn: "reset-before-request",
					NumRetries: wrapperspb.UInt32(2)}}}}
	routes := &routev3.RouteConfiguration{Name: cluster, ValidateClusters: wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxDirectResponse),
		VirtualHosts: []*routev3.VirtualHost{
			{Name: fmt.Sprintf("inbound|%s|%d", portName, port), Domains: []string{"*"},
				Routes: []*routev3.Route{route}}}}
	return withRoutes(manager, routes)
}

// plainHTTP lists the application protocols detected by the HTTP inspector.
var plainHTTP = []string{"http/1.0", "http/1.1", "h2c"}

// detection sets how long a listener waits for the first bytes of a connection; 0 is unlimited.
func detection(l *listenerv3.Listener, wait time.Duration) {
	l.ListenerFiltersTimeout = durationpb.New(wait)
	l.ContinueOnListenerFiltersTimeout = true
}
