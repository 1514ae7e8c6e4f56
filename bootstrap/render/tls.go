package render

import (
	"cmp"
	"net/netip"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"outrider.org/outrider/bootstrap"
)

// Names of the workload's secrets in SDS.
const (
	workloadSecret = "default"
	rootSecret     = "ROOTCA"
	tlsSocketName  = "envoy.transport_sockets.tls"
)

// transportSocket returns nil without TLS.
func (b *builder) transportSocket(cluster, host string, settings bootstrap.TLS,
	http2 bool) *corev3.TransportSocket {
	switch settings.Mode {
	case "", bootstrap.TLSDisable:
		return nil
	case bootstrap.TLSSimple, bootstrap.TLSMutual:
	default:
		b.fail("cluster %s: TLS mode %q is none of disable, simple, mutual", cluster, settings.Mode)
		return nil
	}
	serverName := cmp.Or(settings.ServerName, host)
	common := &tlsv3.CommonTlsContext{}
	if http2 {
		common.AlpnProtocols = []string{"h2"}
	}
	b.validation(common, cluster, settings, serverName)
	if settings.Mode == bootstrap.TLSMutual {
		b.certificate(common, cluster, settings)
	}
	context := &tlsv3.UpstreamTlsContext{CommonTlsContext: common}
	if _, err := netip.ParseAddr(serverName); err != nil {
		context.Sni = serverName // SNI excludes IP addresses
	}
	return &corev3.TransportSocket{
		Name:       tlsSocketName,
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: b.pack(context)},
	}
}

func (b *builder) validation(common *tlsv3.CommonTlsContext, cluster string, settings bootstrap.TLS,
	serverName string) {
	context := &tlsv3.CertificateValidationContext{
		MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{alternativeName(serverName)}}
	switch {
	case settings.CertificateFromSDS:
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         context,
				ValidationContextSdsSecretConfig: secret(rootSecret),
			},
		}
		return
	case settings.CAFile != "":
		context.TrustedCa = file(settings.CAFile)
	case b.in.SystemRoots != "":
		context.TrustedCa = file(b.in.SystemRoots)
	default: // refused, because Envoy without roots would accept any certificate
		b.fail("cluster %s: TLS needs a CA file, as this system's own root certificates were not "+
			"found", cluster)
	}
	common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{
		ValidationContext: context}
}

func (b *builder) certificate(common *tlsv3.CommonTlsContext, cluster string,
	settings bootstrap.TLS) {
	if settings.CertificateFromSDS {
		if b.in.SDSSocket == "" {
			b.fail("cluster %s: its certificate is to come over SDS, but there is no SDS socket",
				cluster)
		}
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secret(workloadSecret)}
		return
	}
	if settings.CertFile == "" || settings.KeyFile == "" {
		b.fail("cluster %s: TLS mode mutual needs a certificate file and a key file", cluster)
		return
	}
	common.TlsCertificates = []*tlsv3.TlsCertificate{{
		CertificateChain: file(settings.CertFile),
		PrivateKey:       file(settings.KeyFile),
	}}
}

func secret(name string) *tlsv3.SdsSecretConfig {
	source := &corev3.ApiConfigSource{
		ApiType:                   corev3.ApiConfigSource_GRPC,
		TransportApiVersion:       corev3.ApiVersion_V3,
		SetNodeOnFirstMessageOnly: true,
		GrpcServices:              []*corev3.GrpcService{grpcService(SecretCluster)},
	}
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: source},
	}}
}

func alternativeName(name string) *tlsv3.SubjectAltNameMatcher {
	kind := tlsv3.SubjectAltNameMatcher_DNS
	if _, err := netip.ParseAddr(name); err == nil {
		kind = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
	} else if strings.HasPrefix(name, "spiffe://") {
		kind = tlsv3.SubjectAltNameMatcher_URI
	}
	return &tlsv3.SubjectAltNameMatcher{
		SanType: kind,
		Matcher: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}},
	}
}

func file(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
