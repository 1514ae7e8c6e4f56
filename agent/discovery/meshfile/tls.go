package meshfile

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"
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
		m.TlsDefaults.GetEcdhCurves(), model.IsCurve)
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

// oneOfMany warns of names that have no effect.
func (c *checker) oneOfMany(field, what, cure string, names []string, is func(string) bool) {
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case !is(name):
			c.warn(at, fmt.Sprintf("%q is no %s and has no effect", name, what), cure)
		case slices.Contains(names[:i], name):
			c.warn(at, name+" is given twice", "remove one")
		}
	}
}

// trustDomain is Istio's pattern: DNS labels with an optional final dot.
var trustDomain = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(
		`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*\.?$`)
})

// trust checks the trust domains and CA certificates.
func (c *checker) trust(m *meshapi.MeshConfig) {
	domain := func(field, name string) {
		if !trustDomain().MatchString(name) {
			c.fail(field, fmt.Sprintf("%q is no trust domain", name),
				"write one such as cluster.local, without spiffe://")
		}
	}
	if m.TrustDomain != "" {
		domain("trustDomain", m.TrustDomain)
	}
	for i, alias := range m.TrustDomainAliases {
		domain(fmt.Sprintf("trustDomainAliases[%d]", i), alias)
	}
	for i, data := range m.CaCertificates {
		c.authority(fmt.Sprintf("caCertificates[%d]", i), data)
	}
}

func (c *checker) authority(field string, data *meshapi.MeshConfig_CertificateData) {
	const idle = "has no effect in this version of Outrider: the authority is trusted for all"
	if len(data.GetCertSigners()) > 0 {
		c.warn(field+".certSigners", idle, "remove it to be rid of this warning")
	}
	if len(data.GetTrustDomains()) > 0 {
		c.warn(field+".trustDomains", idle, "remove it to be rid of this warning")
	}
	if data.GetSpiffeBundleUrl() != "" {
		c.warn(field+".spiffeBundleUrl",
			"is not supported by this version of Outrider and has no effect",
			"write the authority's certificate into pem")
		return
	}
	if err := checkAuthority(data.GetPem()); err != nil {
		c.fail(field+".pem", err.Error(),
			"write the certificate of an authority as PEM: pem: |, and below it -----BEGIN "+
				"CERTIFICATE-----")
	}
}

// checkAuthority returns an error unless text holds CA certificates in PEM. Istio checks only the
// first.
func checkAuthority(text string) error {
	rest := []byte(text)
	for count := 0; ; count++ {
		block, after := pem.Decode(rest)
		if block == nil {
			if count == 0 {
				return errors.New("holds no PEM")
			}
			return nil
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("holds a %s, and should hold certificates alone", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("holds no certificate that can be read: %w", err)
		}
		if !certificate.IsCA {
			return fmt.Errorf("holds the certificate of %q, which is no authority's",
				certificate.Subject)
		}
		rest = after
	}
}

// authorities returns the trusted CA certificates as istiod serves them, sorted without duplicates.
func authorities(m *meshapi.MeshConfig) []string {
	var all []string
	for _, data := range m.CaCertificates {
		if text := data.GetPem(); text != "" {
			all = append(all, text)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
