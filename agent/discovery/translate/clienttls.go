package translate

import (
	"cmp"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawbufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

// applyTLS configures TLS of connections to the service. names are the subject alternative names to
// expect, and serverName is the SNI for ISTIO_MUTUAL; the policy's own values have precedence over
// both.
func (d *draft) applyTLS(names []string, serverName string) {
	if context := d.tlsContext(names, serverName); context != nil {
		d.TransportSocket = tlsSocket(context)
	}
}

// applyProxyProtocol makes all transport sockets of the cluster send the PROXY protocol, if the
// policy requires it.
func (d *draft) applyProxyProtocol() {
	in := d.policy.proxyProtocol
	if in == nil {
		return
	}
	wrap := func(inner *corev3.TransportSocket) *corev3.TransportSocket {
		return transportSocket("envoy.transport_sockets.upstream_proxy_protocol",
			&proxyprotocolv3.ProxyProtocolUpstreamTransport{
				// the enums of Istio and Envoy have the same numbers
				Config: &corev3.ProxyProtocolConfig{Version: corev3.ProxyProtocolConfig_Version(
					in.Version)}, TransportSocket: inner})
	}
	switch {
	case d.TransportSocket != nil:
		d.TransportSocket = wrap(d.TransportSocket)
	case len(d.TransportSocketMatches) == 0:
		d.TransportSocket = wrap(plainSocket())
	}
	for _, match := range d.TransportSocketMatches {
		match.TransportSocket = wrap(match.TransportSocket)
	}
}

// peers returns the expected subject alternative names of a service: those of its ServiceEntry, and
// of the service accounts of its endpoints.
func (d *draft) peers(service *model.Service, port *model.Port) []string {
	names := slices.Clone(port.Entry.SubjectAltNames)
	for _, account := range service.IdentitySANs() {
		names = append(names, d.mesh.ServiceAccountID(service.Namespace, account))
	}
	return d.mesh.AcceptedSANs(names)
}

func tlsSocket(context proto.Message) *corev3.TransportSocket {
	return transportSocket("envoy.transport_sockets.tls", context)
}

func plainSocket() *corev3.TransportSocket {
	return transportSocket("envoy.transport_sockets.raw_buffer", &rawbufferv3.RawBuffer{})
}

func transportSocket(name string, config proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: name, ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: typed(config)}}
}

// tlsContext returns the TLS settings of connections to the service; nil means plain text.
func (d *draft) tlsContext(names []string, serverName string) *tlsv3.UpstreamTlsContext {
	in := d.policy.tls
	switch in.GetMode() {
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
		return d.originTLS(in, names)
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		return d.meshTLS(in, names, serverName)
	}
	return nil
}

// originTLS returns the TLS settings for certificates from files or a credential. Without a
// configured SNI, Envoy uses the request's host, and verifies it unless the policy has subject
// alternative names.
func (d *draft) originTLS(in *networking.ClientTLSSettings,
	names []string) *tlsv3.UpstreamTlsContext {
	out := d.newTLS(in.Sni)
	common := out.CommonTlsContext
	common.TlsParams.CipherSuites, common.TlsParams.EcdhCurves = model.SupportedCipherSuites(
		d.mesh.TLSDefaults.GetCipherSuites()), model.SupportedECDHCurves(d.mesh.TLSDefaults.GetEcdhCurves())
	verify := !in.GetInsecureSkipVerify().GetValue()
	if in.Sni == "" {
		options := &corev3.UpstreamHttpProtocolOptions{AutoSni: true, AutoSanValidation: verify &&
			len(in.SubjectAltNames) == 0}
		d.options().UpstreamHttpProtocolOptions = options
	}
	if in.Mode == networking.ClientTLSSettings_MUTUAL {
		pair := ConfiguredSecret{Certificate: in.ClientCertificate, Key: in.PrivateKey}
		if in.CredentialName != "" {
			pair = pairOf(in.CredentialName, d.mesh)
		}
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{d.fileSecret(pair)}
	}
	if verify {
		roots := ConfiguredSecret{Authorities: in.CaCertificates, RevocationList: in.CaCrl}
		if in.CredentialName != "" {
			roots = rootsOf(in.CredentialName, d.mesh)
		} else if roots.Authorities == "" {
			roots.Authorities = d.mesh.SystemRoots
		}
		if len(in.SubjectAltNames) > 0 {
			names = in.SubjectAltNames
		}
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{
					MatchTypedSubjectAltNames: anyOfNames(names)},
				ValidationContextSdsSecretConfig: d.fileSecret(roots)}}
	}
	if d.speaksHTTP2() {
		common.AlpnProtocols = []string{"h2"}
	}
	return out
}

// fileSecret returns a reference to a secret from files or a credential, and records that the
// cluster needs it.
func (d *draft) fileSecret(secret ConfiguredSecret) *tlsv3.SdsSecretConfig {
	d.secrets = append(d.secrets, secret)
	return secretSource(secret)
}

// meshTLS returns the settings for mutual TLS between workloads with the certificates of the mesh.
// in may be nil.
func (d *draft) meshTLS(in *networking.ClientTLSSettings, names []string,
	serverName string) *tlsv3.UpstreamTlsContext {
	out := d.newTLS(cmp.Or(in.GetSni(), serverName))
	if own := in.GetSubjectAltNames(); len(own) > 0 {
		names = own
	}
	common := out.CommonTlsContext
	meshCertificates(common, anyOfNames(names))
	common.AlpnProtocols = []string{"istio"}
	if d.speaksHTTP2() {
		common.AlpnProtocols = []string{"istio", "h2"}
	}
	return out
}

func (d *draft) newTLS(serverName string) *tlsv3.UpstreamTlsContext {
	return &tlsv3.UpstreamTlsContext{Sni: serverName, CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3}}}
}

// anyOfNames returns matchers for certificates that have any of the names, as a subject alternative
// name of any type.
func anyOfNames(names []string) []*tlsv3.SubjectAltNameMatcher {
	var out []*tlsv3.SubjectAltNameMatcher
	for _, name := range names {
		for _, kind := range subjectAltNameTypes {
			out = append(out, &tlsv3.SubjectAltNameMatcher{SanType: kind,
				Matcher: exactly(name)})
		}
	}
	return out
}
