package translate

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/resource"
)

// GatewayServer is one server of a Gateway, on a listener that it may share.
type GatewayServer struct {
	RouteName   string
	ServerNames []string                      // of TLS; nil or "*" takes every name
	TLS         *networking.ServerTLSSettings // nil: plain HTTP
}

// HTTPRouteName is Istio's name of the route configuration of a gateway's plain HTTP port: http.80, or http.80.10.0.0.1
// for servers that are bound to an address.
func HTTPRouteName(port uint32, bind string) string {
	if bind == "" {
		return fmt.Sprintf("http.%d", port)
	}
	return fmt.Sprintf("http.%d.%s", port, bind)
}

// HTTPSRouteName is of one server of one gateway: https.443.name.gateway.namespace.
func HTTPSRouteName(port uint32, portName, gateway, namespace string) string {
	return fmt.Sprintf("https.%d.%s.%s.%s", port, portName, gateway, namespace)
}

// GatewayListener listens for all servers of a port of one address ("" = all IPv4 ones): one for plain HTTP, or any
// number that server names tell apart.
func GatewayListener(address string, port uint32, servers []GatewayServer, m *mesh.Config, origins ...resource.Origin) (*resource.Resource, error) {
	if address == "" {
		address = anyIPv4
	}
	l := newListener(address, port)
	for _, server := range servers {
		manager, err := connectionManager(server.RouteName, "outbound_"+ListenerName(address, port), true, m)
		if err != nil {
			return nil, err
		}
		chain := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{manager}}
		if server.TLS != nil {
			chain.Name = server.RouteName
			if len(server.ServerNames) > 0 {
				chain.FilterChainMatch = &listenerv3.FilterChainMatch{ServerNames: server.ServerNames}
			}
			context := downstreamTLS(server.TLS)
			if err := context.Validate(); err != nil {
				return nil, fmt.Errorf("TLS of %s: %w", server.RouteName, err)
			}
			chain.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls",
				ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typed(context)}}
		}
		l.FilterChains = append(l.FilterChains, chain)
	}
	if len(servers) > 0 && servers[0].TLS != nil {
		inspectTLS(l)
	}
	return resource.New(l.Name, l, origins...)
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

// downstreamTLS is how a server proves itself, and what it asks of clients.
func downstreamTLS(in *networking.ServerTLSSettings) *tlsv3.DownstreamTlsContext {
	common := &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{"h2", "http/1.1"},
		TlsParams: &tlsv3.TlsParameters{CipherSuites: in.CipherSuites,
			TlsMinimumProtocolVersion: tlsVersion(in.MinProtocolVersion, tlsv3.TlsParameters_TLSv1_2),
			TlsMaximumProtocolVersion: tlsVersion(in.MaxProtocolVersion, tlsv3.TlsParameters_TLS_AUTO)},
	}
	pair := func(certificate, key string) {
		common.TlsCertificates = append(common.TlsCertificates, &tlsv3.TlsCertificate{CertificateChain: file(certificate), PrivateKey: file(key)})
	}
	if in.ServerCertificate != "" {
		pair(in.ServerCertificate, in.PrivateKey)
	}
	authority := in.CaCertificates
	for _, c := range in.TlsCertificates {
		pair(c.ServerCertificate, c.PrivateKey)
		if authority == "" {
			authority = c.CaCertificates
		}
	}
	out := &tlsv3.DownstreamTlsContext{CommonTlsContext: common}
	if in.Mode != networking.ServerTLSSettings_MUTUAL && in.Mode != networking.ServerTLSSettings_OPTIONAL_MUTUAL {
		return out
	}
	out.RequireClientCertificate = wrapperspb.Bool(in.Mode == networking.ServerTLSSettings_MUTUAL)
	check := &tlsv3.CertificateValidationContext{TrustedCa: file(authority), VerifyCertificateSpki: in.VerifyCertificateSpki, VerifyCertificateHash: in.VerifyCertificateHash}
	if in.CaCrl != "" {
		check.Crl = file(in.CaCrl)
	}
	for _, name := range in.SubjectAltNames {
		for _, kind := range []tlsv3.SubjectAltNameMatcher_SanType{tlsv3.SubjectAltNameMatcher_URI, tlsv3.SubjectAltNameMatcher_DNS} {
			check.MatchTypedSubjectAltNames = append(check.MatchTypedSubjectAltNames, &tlsv3.SubjectAltNameMatcher{SanType: kind,
				Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}}})
		}
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: check}
	return out
}

func tlsVersion(in networking.ServerTLSSettings_TLSProtocol, otherwise tlsv3.TlsParameters_TlsProtocol) tlsv3.TlsParameters_TlsProtocol {
	if in == networking.ServerTLSSettings_TLS_AUTO {
		return otherwise
	}
	return tlsv3.TlsParameters_TlsProtocol(in) // the same numbers
}
