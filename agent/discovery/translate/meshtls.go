package translate

import (
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

// istiod's names of the SDS secrets with the proxy's own certificate and its CA certificates, and
// of the cluster that serves these secrets.
const (
	ownCertificate = "default"
	meshRoots      = "ROOTCA"
	secretCluster  = "sds-grpc"
)

// mutualMatch is the metadata of endpoints for which automatic mutual TLS is used, as in istiod.
var mutualMatch = &structpb.Struct{Fields: map[string]*structpb.Value{
	"tlsMode": structpb.NewStringValue("istio")}}

var mutualEndpoint = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
	"envoy.transport_socket_match": mutualMatch}}

// automatic reports whether connections to a port use mutual TLS unless a DestinationRule
// configures TLS. Client and server must be workloads of the mesh with identities.
func (out *Clusters) automatic(service *model.Service, port *model.Port) bool {
	return out.node.Identity && out.mesh.AutoMutualTLS && port.IsMeshInternal() &&
		!service.DisablesMutualTLS()
}

// mutualByEndpoint uses mutual TLS for connections to endpoints with a mesh identity, unless a
// DestinationRule sets a TLS mode other than ISTIO_MUTUAL (see tlsMode). If no DestinationRule sets
// a mode, the PeerAuthentication of an endpoint may disable mutual TLS.
func (d *draft) mutualByEndpoint(endpoints []model.Endpoint,
	mode *networking.ClientTLSSettings_TLSmode, names []string, serverName string) {
	mutual := func(e *model.Endpoint) bool {
		if mode != nil {
			return e.MutualTLS && *mode == networking.ClientTLSSettings_ISTIO_MUTUAL
		}
		return e.MutualTLS && !e.PlainText
	}
	if !slices.ContainsFunc(endpoints, func(e model.Endpoint) bool { return mutual(&e) }) {
		return // the cluster uses no TLS, and must not wait for a secret
	}
	d.mutual = mutual
	d.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: mutualMatch,
			TransportSocket: tlsSocket(d.meshTLS(nil, names, serverName))},
		{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: plainSocket()}}
}

// mutualToAll makes connections to original destinations use mutual TLS if all endpoints of the
// service have an identity.
func (d *draft) mutualToAll(service *model.Service, port *model.Port, serverName string) {
	all := service.Endpoints(port, nil)
	if len(all) > 0 && !slices.ContainsFunc(all, func(e model.Endpoint) bool {
		return !e.MutualTLS
	}) {
		d.TransportSocket = tlsSocket(d.meshTLS(nil, d.peers(service, port), serverName))
	}
}

// meshCertificates makes a TLS context present the proxy's certificate, and verify the peer's
// certificate by the mesh's CA certificates and by names.
func meshCertificates(common *tlsv3.CommonTlsContext, names []*tlsv3.SubjectAltNameMatcher) {
	common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secret(ownCertificate)}
	common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
		CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext: &tlsv3.CertificateValidationContext{
				MatchTypedSubjectAltNames: names},
			ValidationContextSdsSecretConfig: secret(meshRoots)}}
}

// secret returns a reference to a secret of the agent's SDS server. Envoy waits secretWait for the
// secret; afterwards connections that need it fail until it arrives.
func secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{
			ApiConfigSource: &corev3.ApiConfigSource{
				ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
				SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*corev3.GrpcService{
					{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
						EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: secretCluster}}}}}},
		InitialFetchTimeout: durationpb.New(secretWait), ResourceApiVersion: corev3.ApiVersion_V3}}
}

// meshServerName returns the SNI that istiod uses for a proxy of the mesh:
// outbound_.80_.v1_.reviews.example.com.
func meshServerName(port uint32, subset, host string) string {
	return fmt.Sprintf("outbound_.%d_.%s_.%s", port, subset, host)
}
