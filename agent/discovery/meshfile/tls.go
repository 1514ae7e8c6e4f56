package meshfile

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/discovery/model"
)

// tls checks the mesh-wide TLS settings.
func (c *checker) tls(m *meshapi.MeshConfig) {
	c.oneOfMany("tlsDefaults.cipherSuites", "cipher suite",
		"write one such as ECDHE-RSA-AES128-GCM-SHA256", m.TlsDefaults.GetCipherSuites(),
		model.IsCipherSuite)
	c.oneOfMany("tlsDefaults.ecdhCurves", "curve", "write one such as P-256 or X25519",
		m.TlsDefaults.GetEcdhCurves(), model.IsECDHCurve)
	if m.MeshMTLS == nil {
		return
	}
	if len(m.MeshMTLS.EcdhCurves) > 0 {
		c.fail("meshMTLS.ecdhCurves", "is not taken between workloads of the mesh",
			"remove it, or write it into tlsDefaults")
	}
	c.oneOfMany("meshMTLS.cipherSuites", "cipher suite",
		"write one such as ECDHE-RSA-AES128-GCM-SHA256", m.MeshMTLS.CipherSuites,
		model.IsCipherSuite)
}

// oneOfMany warns of names in a list that are unknown or occur twice.
func (c *checker) oneOfMany(field, what, fix string, names []string, is func(string) bool) {
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case !is(name):
			c.warn(at, fmt.Sprintf("%q is no %s and has no effect", name, what), fix)
		case slices.Contains(names[:i], name):
			c.warn(at, name+" is given twice", "remove one")
		}
	}
}

// trustDomain matches trust domains by Istio's pattern: DNS labels with an optional final dot.
var trustDomain = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(
		`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\.?$`)
})

// trust checks the trust domains and the CA certificates.
func (c *checker) trust(m *meshapi.MeshConfig) {
	if m.TrustDomain != "" {
		c.domain("trustDomain", m.TrustDomain)
	}
	for i, alias := range m.TrustDomainAliases {
		c.domain(fmt.Sprintf("trustDomainAliases[%d]", i), alias)
	}
	for i, data := range m.CaCertificates {
		c.authority(fmt.Sprintf("caCertificates[%d]", i), data)
	}
}

func (c *checker) domain(field, name string) {
	if !trustDomain().MatchString(name) {
		c.fail(field, fmt.Sprintf("%q is no trust domain", name),
			"write one such as cluster.local, without spiffe://")
	}
}

func (c *checker) authority(field string, data *meshapi.MeshConfig_CertificateData) {
	if len(data.GetCertSigners()) > 0 {
		c.warn(field+".certSigners", "has no effect: it is for istiod as registration authority of "+
			"Kubernetes signers", "remove it, or list the authority without it")
	}
	for i, name := range data.GetTrustDomains() {
		c.domain(fmt.Sprintf("%s.trustDomains[%d]", field, i), name)
	}
	if text := data.GetSpiffeBundleUrl(); text != "" {
		bundle, err := url.Parse(bundleURL(text))
		switch {
		case err != nil || bundle.Scheme != "https" || bundle.Host == "":
			c.fail(field+".spiffeBundleUrl", "is not an https URL",
				"write one such as https://spire.example.com:8443/bundle")
		case bundle.User != nil:
			c.fail(field+".spiffeBundleUrl", "has credentials, which conditions would show",
				"remove them: bundles are public")
		}
		return
	}
	if err := checkAuthority(data.GetPem()); err != nil {
		c.fail(field+".pem", err.Error(),
			"write the certificate of an authority as PEM: pem: |, and below it -----BEGIN "+
				"CERTIFICATE-----")
	}
}

// checkAuthority returns an error unless all PEM blocks in the text are CA certificates. Istio
// checks only the first one.
func checkAuthority(text string) error {
	rest := []byte(text)
	for count := 0; ; count++ {
		block, after := pem.Decode(rest)
		if block == nil {
			if count == 0 {
				return errors.New("contains no PEM block")
			}
			return nil
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("contains a PEM block %s; only CERTIFICATE is allowed", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("contains an invalid certificate: %w", err)
		}
		if !certificate.IsCA {
			return fmt.Errorf("contains the certificate of %q, which is not a CA certificate",
				certificate.Subject)
		}
		rest = after
	}
}

// bundleURL returns the URL of a spiffeBundleUrl, which may lack the prefix https://.
func bundleURL(text string) string {
	if strings.Contains(text, "://") {
		return text
	}
	return "https://" + text
}

// authorities returns the CA certificates, the URLs of SPIFFE bundles, and the trust domains of
// caCertificates, each sorted.
func authorities(m *meshapi.MeshConfig) (certificates, bundles, domains []string) {
	for _, data := range m.CaCertificates {
		if bundle := data.GetSpiffeBundleUrl(); bundle != "" {
			bundles = append(bundles, bundleURL(bundle))
		} else {
			certificates = append(certificates, data.GetPem())
		}
		domains = append(domains, data.TrustDomains...)
	}
	sorted := func(all []string) []string {
		slices.Sort(all)
		return slices.Compact(all)
	}
	return sorted(certificates), sorted(bundles), sorted(domains)
}
