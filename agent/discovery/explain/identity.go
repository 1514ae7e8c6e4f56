package explain

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// Istio's name of the secret with the proxy's mesh certificate, and Envoy's name of the metadata
// that selects an endpoint's transport socket.
const (
	ownCertificate = "default"
	socketMatch    = "envoy.transport_socket_match"
)

// PeerMutualTLS describes the mode of mutual TLS of a workload.
type PeerMutualTLS struct {
	Mode          string // mode of mutual TLS: STRICT, PERMISSIVE or DISABLE
	Policy        string // PeerAuthentication that sets the mode, with its file and line
	AutoMutualTLS bool   // automatic mutual TLS is used for connections to the workload
}

// upstream returns how connections to a cluster are encrypted, and with which identities.
func (e *explanation) upstream(c *clusterv3.Cluster) []string {
	if len(c.TransportSocketMatches) == 0 {
		return []string{e.socketText(c.TransportSocket)}
	}
	return []string{"to endpoints with mutual TLS " + e.socketText(
		c.TransportSocketMatches[0].TransportSocket), "to others in plain text"}
}

func (e *explanation) socketText(s *corev3.TransportSocket) string {
	if s == nil {
		return "in plain text"
	}
	context, ok := unpack(s.GetTypedConfig(), &tlsv3.UpstreamTlsContext{})
	if !ok {
		return "over " + s.Name
	}
	text := "over TLS"
	if context.Sni != "" {
		text += " with server name " + context.Sni
	}
	return text + e.identities(context.CommonTlsContext)
}

// identities describes which certificates one side of a TLS connection presents and expects.
func (e *explanation) identities(common *tlsv3.CommonTlsContext) string {
	var text strings.Builder
	for _, secret := range common.GetTlsCertificateSdsSecretConfigs() {
		name := "certificate " + secret.Name
		if secret.Name == ownCertificate {
			name = "its certificate of the mesh"
			if e.proxy.SPIFFEID != "" {
				name = e.proxy.SPIFFEID
			}
		}
		text.WriteString(", presents " + name)
	}
	check := common.GetCombinedValidationContext()
	if roots := check.GetValidationContextSdsSecretConfig().GetName(); roots != "" {
		text.WriteString(", expects a certificate by " + roots)
		if names := acceptedNames(check.GetDefaultValidationContext()); len(names) > 0 {
			text.WriteString(" of " + strings.Join(names, " or "))
		}
	}
	return text.String()
}

// acceptedNames returns the subject alternative names that a peer may have. A final "*" marks a
// prefix.
func acceptedNames(check *tlsv3.CertificateValidationContext) []string {
	var names []string
	matchers := check.GetMatchSubjectAltNames() //nolint:staticcheck // istiod sets the deprecated field
	for _, m := range check.GetMatchTypedSubjectAltNames() {
		matchers = append(matchers, m.GetMatcher())
	}
	for _, m := range matchers {
		name := m.GetExact()
		if prefix := m.GetPrefix(); prefix != "" {
			name = prefix + "*"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// downstream describes which certificates a filter chain that terminates TLS presents and expects.
func (e *explanation) downstream(chain *listenerv3.FilterChain) string {
	context, _ := unpack(chain.GetTransportSocket().GetTypedConfig(),
		&tlsv3.DownstreamTlsContext{})
	kind := "ends TLS"
	if context.GetRequireClientCertificate().GetValue() {
		kind = "ends mutual TLS"
	}
	return kind + e.identities(context.GetCommonTlsContext())
}

// mutual reports whether connections to an endpoint use automatic mutual TLS.
func mutual(ep *endpointv3.LbEndpoint) bool {
	return ep.GetMetadata().GetFilterMetadata()[socketMatch] != nil
}

// mismatch says why connections to an endpoint do not meet the requirement of its
// PeerAuthentication.
type mismatch struct {
	why, fix string // reason and fix; "": connections meet the requirement
	certain  bool   // the endpoint is certainly a workload of the mesh
}

func (e *explanation) mismatch(c *clusterv3.Cluster, ep *endpointv3.LbEndpoint) mismatch {
	if e.proxy.PeerMutualTLS == nil {
		return mismatch{}
	}
	peer := e.proxy.PeerMutualTLS(c.Name, addressText(ep.GetEndpoint().GetAddress()))
	socket := c.TransportSocket
	if len(c.TransportSocketMatches) > 0 && mutual(ep) {
		socket = c.TransportSocketMatches[0].TransportSocket
	}
	context, encrypted := unpack(socket.GetTypedConfig(), &tlsv3.UpstreamTlsContext{})
	secrets := context.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs()
	switch {
	case peer.Mode == "STRICT" && len(secrets) == 0 && (encrypted || socket == nil):
		fix := "set the DestinationRule's tls mode to ISTIO_MUTUAL, and provider in [identity]"
		if !peer.AutoMutualTLS {
			fix = "give the endpoint a serviceAccount or the label security.istio.io/tlsMode: istio"
		}
		return mismatch{"requires mutual TLS by " + peer.Policy + ", and no certificate is presented",
			fix, peer.AutoMutualTLS}
	case peer.Mode == "DISABLE" && len(secrets) > 0 && secrets[0].Name == ownCertificate:
		return mismatch{"does not end mutual TLS by " + peer.Policy, "remove ISTIO_MUTUAL from the " +
			"DestinationRule, or DISABLE from the PeerAuthentication", peer.AutoMutualTLS}
	}
	return mismatch{}
}

// identified reports whether the filter chain accepts the client's certificate, or a client without
// one. If not, the explanation ends with OutcomeConnectionClosed.
func (e *explanation) identified(chain *listenerv3.FilterChain) bool {
	context, ok := unpack(chain.GetTransportSocket().GetTypedConfig(), &tlsv3.DownstreamTlsContext{})
	if !ok || !context.GetRequireClientCertificate().GetValue() {
		return true
	}
	if e.request.ClientSPIFFEID == "" {
		e.unknown("whether the client has a certificate that is accepted (--from SPIFFE-ID)")
		return true
	}
	accepted := acceptedNames(context.GetCommonTlsContext().GetCombinedValidationContext().
		GetDefaultValidationContext())
	if len(accepted) == 0 || slices.ContainsFunc(accepted, func(name string) bool {
		prefix, wild := strings.CutSuffix(name, "*")
		return name == e.request.ClientSPIFFEID || wild &&
			strings.HasPrefix(e.request.ClientSPIFFEID, prefix)
	}) {
		return true
	}
	e.end(OutcomeConnectionClosed, 0, fmt.Sprintf("the proxy accepts no certificate of %s, only of %s",
		e.request.ClientSPIFFEID, strings.Join(accepted, " or ")),
		"use an identity of the mesh's trust domains, or add its trust domain to "+
			"trustDomainAliases in MeshConfig")
	return false
}
