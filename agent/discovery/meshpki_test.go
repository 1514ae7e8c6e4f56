package discovery_test

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"outrider.org/outrider/agent/identity/pkitest"
)

// meshPKI holds the certificates of workloads, issued by the mesh's CA and by a foreign one.
type meshPKI struct {
	mesh, foreign *pkitest.Authority
}

func newMeshPKI(t testing.TB) meshPKI {
	t.Helper()
	return meshPKI{pkitest.NewAuthority(t, "mesh", nil), pkitest.NewAuthority(t, "foreign", nil)}
}

// issueID returns a certificate with a SPIFFE ID, and its key.
func issueID(t *testing.T, by *pkitest.Authority, id string) *tls.Certificate {
	t.Helper()
	chain, key := issuePEM(t, by, id)
	pair, err := tls.X509KeyPair(chain, key)
	must(t, err)
	return &pair
}

func issuePEM(t testing.TB, by *pkitest.Authority, id string) (chain, key []byte) {
	t.Helper()
	leaf := pkitest.LeafTemplate("workload", time.Hour)
	uri, err := url.Parse(id)
	must(t, err)
	leaf.URIs = []*url.URL{uri}
	return by.Issue(t, leaf)
}

// secrets returns an SDS server with the certificate of a workload with a SPIFFE ID, and the mesh's
// CA certificate.
func (p meshPKI) secrets(t testing.TB, id string) agentSecrets {
	t.Helper()
	chain, key := issuePEM(t, p.mesh, id)
	inline := func(data []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
	}
	return agentSecrets{own: map[string]*tlsv3.Secret{
		"default": {Name: "default", Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(chain),
				PrivateKey: inline(key)}}},
		"ROOTCA": {Name: "ROOTCA", Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: inline(pkitest.PEM(p.mesh.Certificate))}}}}}
}

// withIdentity returns a function that configures a bootstrap for a proxy with a mesh certificate:
// it adds the node's metadata, and the cluster of an SDS server with the secrets.
func withIdentity(t testing.TB, secrets agentSecrets) func(bootstrap string) string {
	t.Helper()
	cluster := fmt.Sprintf(secretsCluster, startSecrets(t, secrets))
	return func(bootstrap string) string {
		return strings.NewReplacer(`"metadata": {`, `"metadata": {"OUTRIDER_IDENTITY": "true", `,
			`"clusters": [{`, `"clusters": [`+cluster+`{`).Replace(bootstrap)
	}
}
