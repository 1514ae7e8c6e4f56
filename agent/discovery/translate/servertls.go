package translate

import (
	"cmp"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
)

// secretWait is how long a listener waits for its certificates before it starts without them. The
// value is Envoy's default.
const secretWait = 15 * time.Second

// IsTLSPassthrough reports whether a gateway's server forwards TLS without terminating it.
func IsTLSPassthrough(in *networking.ServerTLSSettings) bool {
	return in.GetMode() == networking.ServerTLSSettings_PASSTHROUGH ||
		in.GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH
}

// ServerSecrets returns the secrets of a gateway's server; none for modes that forward TLS, and for
// ISTIO_MUTUAL.
func ServerSecrets(in *networking.ServerTLSSettings, m *mesh.Config) []ConfiguredSecret {
	if IsTLSPassthrough(in) || UsesMeshIdentity(in) {
		return nil
	}
	secrets := serverCertificates(in, m)
	if requestsClientCertificate(in) {
		secrets = append(secrets, serverAuthorities(in, m))
	}
	return secrets
}

// serverCertificates returns the certificates of a gateway's server. As in Istio, credentials have
// precedence over files.
func serverCertificates(in *networking.ServerTLSSettings, m *mesh.Config) []ConfiguredSecret {
	var secrets []ConfiguredSecret
	for _, name := range credentialNames(in) {
		secrets = append(secrets, pairOf(name, m))
	}
	switch {
	case len(secrets) > 0:
		return secrets
	case len(in.TlsCertificates) == 0:
		return []ConfiguredSecret{{Certificate: in.ServerCertificate, Key: in.PrivateKey}}
	}
	for _, pair := range in.TlsCertificates {
		secrets = append(secrets, ConfiguredSecret{Certificate: pair.ServerCertificate,
			Key: pair.PrivateKey})
	}
	return secrets
}

// credentialNames returns the names of the credentials of a gateway's server.
func credentialNames(in *networking.ServerTLSSettings) []string {
	if in.CredentialName != "" {
		return []string{in.CredentialName}
	}
	return in.CredentialNames
}

func serverAuthorities(in *networking.ServerTLSSettings, m *mesh.Config) ConfiguredSecret {
	if names := credentialNames(in); len(names) > 0 {
		// the host's SDS server serves the CA certificates under this name
		if credential.IsExternalSDSSecret(in.CaCertCredentialName) {
			return pairOf(in.CaCertCredentialName, m)
		}
		return rootsOf(cmp.Or(in.CaCertCredentialName, names[0]), m)
	}
	return ConfiguredSecret{Authorities: in.CaCertificates, RevocationList: in.CaCrl}
}

// requestsClientCertificate reports whether a gateway's server requests client certificates.
func requestsClientCertificate(in *networking.ServerTLSSettings) bool {
	return in.Mode == networking.ServerTLSSettings_MUTUAL ||
		in.Mode == networking.ServerTLSSettings_OPTIONAL_MUTUAL
}

// UsesMeshIdentity reports whether a gateway's server presents the proxy's certificate of the mesh.
func UsesMeshIdentity(in *networking.ServerTLSSettings) bool {
	return in.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL
}

// gatewayMutualTLS returns the TLS settings of a gateway's server with ISTIO_MUTUAL. As in istiod,
// these are Envoy's default protocol versions and cipher suites; without subject alternative names
// all certificates of the mesh's CA are accepted. http reports whether the server routes requests.
func gatewayMutualTLS(in *networking.ServerTLSSettings, http bool) *tlsv3.DownstreamTlsContext {
	common := &tlsv3.CommonTlsContext{AlpnProtocols: []string{"h2", "http/1.1"}}
	if !http {
		common.AlpnProtocols = []string{"istio-peer-exchange", "h2", "http/1.1"}
	}
	meshCertificates(common, anyOfNames(in.SubjectAltNames))
	if in.InsecureSkipVerify.GetValue() {
		common.GetCombinedValidationContext().DefaultValidationContext.TrustChainVerification =
			tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
	}
	return &tlsv3.DownstreamTlsContext{CommonTlsContext: common,
		RequireClientCertificate: wrapperspb.Bool(true)}
}

// downstreamTLS returns the TLS settings of a gateway's server. The mesh's settings replace
// protocol parameters that the server omits.
func downstreamTLS(in *networking.ServerTLSSettings, m *mesh.Config) *tlsv3.DownstreamTlsContext {
	suites := in.CipherSuites
	if len(suites) == 0 {
		suites = m.TLSDefaults.GetCipherSuites()
	}
	common := &tlsv3.CommonTlsContext{
		AlpnProtocols: []string{"h2", "http/1.1"},
		TlsParams: &tlsv3.TlsParameters{CipherSuites: model.SupportedCipherSuites(suites),
			EcdhCurves: model.SupportedECDHCurves(m.TLSDefaults.GetEcdhCurves()),
			TlsMinimumProtocolVersion: tlsVersion(in.MinProtocolVersion,
				lowestVersion(m.TLSDefaults)),
			TlsMaximumProtocolVersion: tlsVersion(in.MaxProtocolVersion,
				tlsv3.TlsParameters_TLS_AUTO)},
	}
	for _, secret := range serverCertificates(in, m) {
		common.TlsCertificateSdsSecretConfigs = append(common.TlsCertificateSdsSecretConfigs,
			secretSource(secret))
	}
	out := &tlsv3.DownstreamTlsContext{CommonTlsContext: common}
	if !requestsClientCertificate(in) {
		return out
	}
	out.RequireClientCertificate = wrapperspb.Bool(in.Mode == networking.ServerTLSSettings_MUTUAL)
	check := &tlsv3.CertificateValidationContext{VerifyCertificateSpki: in.VerifyCertificateSpki,
		VerifyCertificateHash: in.VerifyCertificateHash}
	check.MatchTypedSubjectAltNames = anyOfNames(in.SubjectAltNames)
	if in.InsecureSkipVerify.GetValue() {
		check.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         check,
			ValidationContextSdsSecretConfig: secretSource(serverAuthorities(in, m))}}
	return out
}

// HasAllowedTLSVersion reports whether a gateway's server can use any TLS version that is not below
// the mesh's minimum. It does not check the server's own range.
func HasAllowedTLSVersion(in *networking.ServerTLSSettings, m *mesh.Config) bool {
	return UsesMeshIdentity(in) ||
		in.GetMinProtocolVersion() != networking.ServerTLSSettings_TLS_AUTO ||
		lowestVersion(m.TLSDefaults) == tlsv3.TlsParameters_TLSv1_2 ||
		tlsVersion(in.GetMaxProtocolVersion(),
			tlsv3.TlsParameters_TLSv1_3) == tlsv3.TlsParameters_TLSv1_3
}

// subjectAltNameTypes lists the types of subject alternative names that may match.
var subjectAltNameTypes = []tlsv3.SubjectAltNameMatcher_SanType{tlsv3.SubjectAltNameMatcher_URI,
	tlsv3.SubjectAltNameMatcher_DNS,
	tlsv3.SubjectAltNameMatcher_EMAIL, tlsv3.SubjectAltNameMatcher_IP_ADDRESS}

func tlsVersion(in networking.ServerTLSSettings_TLSProtocol,
	otherwise tlsv3.TlsParameters_TlsProtocol) tlsv3.TlsParameters_TlsProtocol {
	if in == networking.ServerTLSSettings_TLS_AUTO {
		return otherwise
	}
	return tlsv3.TlsParameters_TlsProtocol(in) // the enums of Istio and Envoy have the same numbers
}
