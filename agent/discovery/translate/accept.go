package translate

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
)

// accepted describes one kind of inbound connections that a port accepts. Each kind has a filter
// chain.
type accepted struct {
	transport string // transport protocol, "tls" or "raw_buffer"; "": any
	// application protocols by ALPN, or as detected by the HTTP inspector; nil: any
	protocols []string
	ends      bool // the proxy terminates TLS
	http      bool // the proxy parses the content as HTTP
}

// ALPN protocols that proxies of the mesh offer, as in Istio: for any content, for content known to
// be HTTP, and for content known not to be.
var (
	meshALPN     = append([]string{"istio", "istio-peer-exchange"}, meshHTTPALPN...)
	meshHTTPALPN = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	meshTCPALPN  = []string{"istio-peer-exchange", "istio"}
)

const (
	overTLS  = "tls"
	overNone = "raw_buffer"
)

// accepts returns the kinds of connections that a port accepts, as in istiod.
func (in InboundListener) accepts() []accepted {
	protocol := in.ProtocolInsideTLS()
	auto, http := protocol == model.AutoProtocol, protocol.IsHTTP()
	switch mode := in.mode(); {
	case in.TLS != nil:
		return []accepted{{transport: overTLS, ends: true, http: http}}
	case mode == model.Strict && auto:
		return []accepted{{transport: overTLS, protocols: meshHTTPALPN, ends: true, http: true},
			{transport: overTLS, ends: true}}
	case mode == model.Strict:
		return []accepted{{transport: overTLS, ends: true, http: http}}
	case mode == model.Permissive && auto:
		return []accepted{{transport: overTLS, protocols: meshHTTPALPN, ends: true, http: true},
			{transport: overNone, protocols: plainHTTP, http: true},
			{transport: overTLS, protocols: meshTCPALPN, ends: true},
			{transport: overNone}, {transport: overTLS}}
	case mode == model.Permissive && http:
		return []accepted{{transport: overTLS, protocols: meshALPN, ends: true, http: true},
			{transport: overNone, http: true}}
	case mode == model.Permissive:
		return []accepted{{transport: overTLS, protocols: meshALPN, ends: true},
			{transport: overTLS}, {transport: overNone}}
	case auto:
		return []accepted{{protocols: plainHTTP, http: true}, {}}
	}
	return []accepted{{http: http}}
}

// mode returns the effective mode of mutual TLS. A proxy without an identity cannot terminate
// mutual TLS, so PERMISSIVE becomes DISABLE.
func (in InboundListener) mode() model.MutualTLSMode {
	switch {
	case in.MutualTLSMode == model.Strict:
		return model.Strict
	case in.MutualTLSMode == model.Disable || !in.HasMeshIdentity:
		return model.Disable
	}
	return model.Permissive
}

// RefusesAllConnections reports whether the port accepts no connection, because it requires mutual
// TLS and the proxy has no identity.
func (in InboundListener) RefusesAllConnections() bool {
	return in.MutualTLSMode == model.Strict &&
		!in.HasMeshIdentity
}

// match returns the filter chain match for a kind of connections to a port; port 0 matches any.
func (a accepted) match(port uint32) *listenerv3.FilterChainMatch {
	out := &listenerv3.FilterChainMatch{TransportProtocol: a.transport,
		ApplicationProtocols: a.protocols}
	if port != 0 {
		out.DestinationPort = wrapperspb.UInt32(port)
	}
	return out
}

// meshCipherSuites are the default cipher suites of mutual TLS with protocol versions before 1.3,
// as in Istio.
var meshCipherSuites = []string{"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
	"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256", "AES256-GCM-SHA384",
	"AES128-GCM-SHA256"}

// mutualTLS returns a server's TLS settings for mutual TLS in the mesh. The server accepts all
// identities of the mesh's trust domain and its aliases.
func mutualTLS(m *mesh.Config) *tlsv3.DownstreamTlsContext {
	suites := model.SupportedCipherSuites(m.MeshMTLS.GetCipherSuites())
	if len(suites) == 0 {
		suites = meshCipherSuites
	}
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{"h2", "http/1.1"},
		TlsParams: &tlsv3.TlsParameters{CipherSuites: suites,
			TlsMinimumProtocolVersion: lowestVersion(m.MeshMTLS),
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3}}
	var names []*tlsv3.SubjectAltNameMatcher
	for _, prefix := range m.AcceptedSPIFFEPrefixes() {
		names = append(names, &tlsv3.SubjectAltNameMatcher{
			SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}}})
	}
	meshCertificates(common, names)
	return &tlsv3.DownstreamTlsContext{CommonTlsContext: common,
		RequireClientCertificate: wrapperspb.Bool(true)}
}

// lowestVersion returns the minimum TLS version that MeshConfig has for servers.
func lowestVersion(in *meshapi.MeshConfig_TLSConfig) tlsv3.TlsParameters_TlsProtocol {
	if in.GetMinProtocolVersion() == meshapi.MeshConfig_TLSConfig_TLSV1_3 {
		return tlsv3.TlsParameters_TLSv1_3
	}
	return tlsv3.TlsParameters_TLSv1_2
}
