package validate

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/credential"
	"outrider.org/outrider/agent/discovery/model"
)

// usesCertificates reports whether TLS settings name a certificate.
func usesCertificates(t *networking.ServerTLSSettings) bool {
	return t.ServerCertificate+t.PrivateKey+t.CaCertificates+t.CaCrl+t.CredentialName+
		t.CaCertCredentialName != "" || len(t.TlsCertificates)+len(t.CredentialNames) > 0
}

// forwardsTLS reports whether a server forwards TLS without terminating it.
func forwardsTLS(t *networking.ServerTLSSettings) bool {
	return t.GetMode() == networking.ServerTLSSettings_PASSTHROUGH ||
		t.GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH
}

func (c *checker) serverTLS(field string, t *networking.ServerTLSSettings) {
	if t.HttpsRedirect {
		c.warn(field+".httpsRedirect", "has no effect: only plain HTTP can be redirected to HTTPS",
			"write it into the server of the HTTP port")
	}
	if !forwardsTLS(t) {
		c.protocolVersions(field, t)
		c.cipherSuites(field+".cipherSuites", t.CipherSuites)
	}
	switch t.Mode {
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL,
		networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		c.serverCertificates(field, t)
		c.clientCertificates(field, t)
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		what := t.Mode.String() + " passes TLS on as it comes"
		if usesCertificates(t) {
			c.warn(field, what+", so the certificates have no effect",
				"remove them, or write mode: SIMPLE")
		}
		c.idleTLS(field, t, what)
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		if usesCertificates(t) {
			c.fail(field, "ISTIO_MUTUAL takes the workload's certificate and excludes others",
				"remove them")
		}
		c.idleTLS(field, &networking.ServerTLSSettings{MinProtocolVersion: t.MinProtocolVersion,
			MaxProtocolVersion: t.MaxProtocolVersion, CipherSuites: t.CipherSuites,
			VerifyCertificateSpki: t.VerifyCertificateSpki,
			VerifyCertificateHash: t.VerifyCertificateHash}, "ISTIO_MUTUAL does not take it")
	default:
		c.fail(field+".mode", fmt.Sprintf("%d is no mode", t.Mode),
			"write SIMPLE, MUTUAL, OPTIONAL_MUTUAL, ISTIO_MUTUAL, PASSTHROUGH or AUTO_PASSTHROUGH")
	}
}

// idleTLS warns of settings, other than certificates, that have no effect because the server does
// not terminate TLS.
func (c *checker) idleTLS(field string, t *networking.ServerTLSSettings, why string) {
	for name, set := range map[string]bool{
		"minProtocolVersion":    t.MinProtocolVersion != networking.ServerTLSSettings_TLS_AUTO,
		"maxProtocolVersion":    t.MaxProtocolVersion != networking.ServerTLSSettings_TLS_AUTO,
		"cipherSuites":          len(t.CipherSuites) > 0,
		"subjectAltNames":       len(t.SubjectAltNames) > 0,
		"verifyCertificateSpki": len(t.VerifyCertificateSpki) > 0,
		"verifyCertificateHash": len(t.VerifyCertificateHash) > 0,
		"insecureSkipVerify":    t.InsecureSkipVerify.GetValue()} {
		if set {
			c.warn(field+"."+name, "has no effect: "+why, "remove it")
		}
	}
}

// serverCertificates checks that a server has exactly one source of certificates: credentials, or
// files.
func (c *checker) serverCertificates(field string, t *networking.ServerTLSSettings) {
	if t.CredentialName != "" || len(t.CredentialNames) > 0 {
		c.credentials(field, t)
		return
	}
	if t.CaCertCredentialName != "" {
		c.warn(field+".caCertCredentialName", "has no effect without credentialName",
			"write caCertificates")
	}
	if len(t.TlsCertificates) > 0 && t.ServerCertificate+t.PrivateKey != "" {
		c.fail(field+".tlsCertificates", "excludes serverCertificate, and both are given",
			"keep one")
	}
	if len(t.TlsCertificates) > 2 {
		c.warn(field+".tlsCertificates", "of one kind of key only one certificate is used",
			"give one with an RSA key and one with an ECDSA key")
	}
	for i, pair := range t.TlsCertificates {
		at := fmt.Sprintf("%s.tlsCertificates[%d]", field, i)
		c.pair(at, pair.GetServerCertificate(), pair.GetPrivateKey())
		if pair.GetCaCertificates() != "" {
			c.warn(at+".caCertificates", "has no effect: a server has one list of authorities",
				"write it into tls.caCertificates")
		}
	}
	if len(t.TlsCertificates) == 0 {
		c.pair(field, t.ServerCertificate, t.PrivateKey)
	}
}

// credentials checks the names of a server's credentials, which have precedence over files.
func (c *checker) credentials(field string, t *networking.ServerTLSSettings) {
	c.credential(field+".credentialName", t.CredentialName)
	if t.CredentialName != "" && len(t.CredentialNames) > 0 {
		c.fail(field+".credentialNames", "excludes credentialName, and both are given", "keep one")
	}
	if len(t.CredentialNames) > 2 {
		c.warn(field+".credentialNames", "of one kind of key only one certificate is used",
			"give one with an RSA key and one with an ECDSA key")
	}
	for i, name := range t.CredentialNames {
		at := fmt.Sprintf("%s.credentialNames[%d]", field, i)
		if name == "" {
			c.fail(at, "is empty", "write the name of a credential")
		}
		c.credential(at, name)
	}
	c.credential(field+".caCertCredentialName", t.CaCertCredentialName)
	if t.ServerCertificate+t.PrivateKey+t.CaCertificates+t.CaCrl != "" ||
		len(t.TlsCertificates) > 0 {
		c.warn(field, "files of certificates have no effect beside credentialName",
			"remove the files or credentialName")
	}
}

// credential checks the name of a credential; "" means none.
func (c *checker) credential(field, name string) {
	if name == "" {
		return
	}
	if credential.IsExternalSDSSecret(name) {
		if err := credential.CheckExternalSDSSecretName(name); err != nil {
			c.fail(field, err.Error(), "write the name of a secret of [identity] credentials_sds")
		}
		return
	}
	if err := credential.CheckName(name); err != nil {
		c.fail(field, err.Error(), "write the name of a folder in [identity] credentials_dir")
	} else if strings.HasSuffix(name, "-cacert") && !strings.HasSuffix(field, "caCertCredentialName") {
		c.fail(field, fmt.Sprintf("%q ends in -cacert, as only authorities of credentials do", name),
			"rename the credential")
	}
}

func (c *checker) pair(field, certificate, key string) {
	for name, path := range map[string]string{"serverCertificate": certificate, "privateKey": key} {
		if path == "" {
			c.fail(field+"."+name, "is missing", "write the path of a file")
		} else {
			c.path(field+"."+name, path)
		}
	}
}

func (c *checker) path(field, path string) {
	c.tilde(field, path)
	if path != "" && !filepath.IsAbs(path) {
		c.warn(field, fmt.Sprintf("%q is read below the folder that Envoy was started in", path),
			"write an absolute path")
	}
}

// tilde refuses paths with a tilde. The name of a secret joins the paths of its files with a tilde,
// so with tildes in paths two secrets could have the same name.
func (c *checker) tilde(field, path string) {
	if strings.Contains(path, "~") {
		c.fail(field, fmt.Sprintf("%q has a ~, which paths of certificates must not have", path),
			"move the file, or make a symbolic link to it")
	}
}

// clientCertificates checks the verification of client certificates.
func (c *checker) clientCertificates(field string, t *networking.ServerTLSSettings) {
	if t.Mode == networking.ServerTLSSettings_SIMPLE {
		if t.CaCrl != "" {
			c.fail(field+".caCrl", "clients' certificates are not asked for with mode SIMPLE",
				"write mode: MUTUAL")
		}
		if t.CaCertificates != "" ||
			len(t.SubjectAltNames)+len(t.VerifyCertificateHash)+len(t.VerifyCertificateSpki) > 0 ||
			t.InsecureSkipVerify.GetValue() {
			c.warn(field,
				"clients' certificates are not asked for with mode SIMPLE, so what "+
					"is said of them has no effect",
				"write mode: MUTUAL")
		}
		return
	}
	if t.CaCertificates == "" && t.CredentialName == "" && len(t.CredentialNames) == 0 {
		c.fail(field+".caCertificates",
			fmt.Sprintf("%s needs the certificates that clients' are checked with", t.Mode),
			"write the path of a file")
	}
	c.path(field+".caCertificates", t.CaCertificates)
	c.path(field+".caCrl", t.CaCrl)
	for i, name := range t.SubjectAltNames {
		if name == "" {
			c.fail(fmt.Sprintf("%s.subjectAltNames[%d]", field, i), "is empty",
				"write a name, for example spiffe://cluster.local/ns/shop/sa/edge")
		}
	}
	for i, digest := range t.VerifyCertificateSpki {
		if raw, err := base64.StdEncoding.DecodeString(digest); err != nil ||
			len(raw) != sha256Size {
			c.fail(fmt.Sprintf("%s.verifyCertificateSpki[%d]", field, i),
				fmt.Sprintf("%q is no SHA-256 in base64", digest),
				"write what openssl dgst -sha256 -binary | base64 gives of the public key")
		}
	}
	for i, digest := range t.VerifyCertificateHash {
		if raw, err := hex.DecodeString(strings.ReplaceAll(digest, ":", "")); err != nil ||
			len(raw) != sha256Size {
			c.fail(fmt.Sprintf("%s.verifyCertificateHash[%d]", field, i),
				fmt.Sprintf("%q is no SHA-256 in hexadecimal", digest),
				"write what openssl x509 -noout -fingerprint -sha256 gives")
		}
	}
}

const sha256Size = 32 // length of a SHA-256 hash in bytes

func (c *checker) protocolVersions(field string, t *networking.ServerTLSSettings) {
	lowest, highest := t.MinProtocolVersion, t.MaxProtocolVersion
	if lowest == networking.ServerTLSSettings_TLS_AUTO {
		lowest = networking.ServerTLSSettings_TLSV1_2
	}
	if highest != networking.ServerTLSSettings_TLS_AUTO && lowest > highest {
		c.warn(field+".maxProtocolVersion",
			fmt.Sprintf("%s is below the minimum %s: no client can connect", highest, lowest),
			"raise it or lower minProtocolVersion")
	}
	if lowest < networking.ServerTLSSettings_TLSV1_2 && len(t.CipherSuites) == 0 {
		c.warn(field+".minProtocolVersion",
			fmt.Sprintf("the default cipher suites have none that %s can use", lowest),
			"name some in cipherSuites, for example ECDHE-RSA-AES128-SHA")
	}
}

func (c *checker) cipherSuites(field string, names []string) {
	seen := map[string]bool{}
	for i, name := range names {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case !model.IsCipherSuite(name):
			c.warn(at, fmt.Sprintf("%q is no cipher suite and has no effect", name),
				"write one such as ECDHE-RSA-AES128-GCM-SHA256")
		case seen[name]:
			c.warn(at, name+" is given twice", "remove one")
		}
		seen[name] = true
	}
}
