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

// accepted is one sort of inbound connections, which has a filter chain of its own.
type accepted struct {
	transport string   // tls or raw_buffer; "": any
	protocols []string // ALPN, or what the HTTP inspector detects; nil: any
	ends      bool     // the proxy ends TLS
	http      bool     // the content is HTTP
}

// ALPN of proxies of the mesh, as in Istio: for any content, for content that the client's proxy
// knows to be HTTP, and for other content.
var (
	meshALPN     = append([]string{"istio", "istio-peer-exchange"}, meshHTTPALPN...)
	meshHTTPALPN = []string{"istio-http/1.0", "istio-http/1.1", "istio-h2"}
	meshTCPALPN  = []string{"istio-peer-exchange", "istio"}
)

const (
	overTLS  = "tls"
	overNone = "raw_buffer"
)

// accepts returns what a port accepts, as istiod configures it.
func (in Inbound) accepts() []accepted {
	protocol := in.Terminated()
	auto, http := protocol == model.Auto, protocol.IsHTTP()
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

// mode returns the mode of mutual TLS in effect. A proxy without an identity cannot end mutual TLS.
func (in Inbound) mode() model.MutualTLS {
	switch {
	case in.Mutual == model.Strict:
		return model.Strict
	case in.Mutual == model.Disable || !in.Identity:
		return model.Disable
	}
	return model.Permissive
}

// Closed reports whether the port can accept nothing: it requires mutual TLS, and the proxy has no
// identity.
func (in Inbound) Closed() bool { return in.Mutual == model.Strict && !in.Identity }

// match returns the filter chain match for a sort of connections; port 0 is any.
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

// mutualTLS returns the TLS settings of a server for workloads of the mesh. It accepts all
// identities of the mesh's trust domain and its aliases.
func mutualTLS(m *mesh.Config) *tlsv3.DownstreamTlsContext {
	suites := model.CipherSuites(m.MutualTLS.GetCipherSuites())
	if len(suites) == 0 {
		suites = meshCipherSuites
	}
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{"h2", "http/1.1"},
		TlsParams: &tlsv3.TlsParameters{CipherSuites: suites,
			TlsMinimumProtocolVersion: lowestVersion(m.MutualTLS),
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3}}
	var names []*tlsv3.SubjectAltNameMatcher
	for _, prefix := range m.TrustDomains() {
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
