package validate

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
)

// clientTLS checks the TLS settings of connections to a service.
func (c *checker) clientTLS(field string, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	files := []struct{ name, path string }{{"clientCertificate", t.ClientCertificate},
		{"privateKey", t.PrivateKey},
		{"caCertificates", t.CaCertificates}, {"caCrl", t.CaCrl}}
	origin := t.Mode == networking.ClientTLSSettings_SIMPLE ||
		t.Mode == networking.ClientTLSSettings_MUTUAL
	for _, f := range files {
		switch {
		case f.path == "":
		case !origin:
			c.warn(field+"."+f.name, fmt.Sprintf("has no effect with mode %s", t.Mode),
				"remove it or write SIMPLE or MUTUAL")
		case t.CredentialName != "":
			c.fail(field+"."+f.name, "excludes credentialName, and both are given", "keep one")
		default:
			c.path(field+"."+f.name, f.path)
		}
	}
	if t.CredentialName != "" && !origin {
		c.warn(field+".credentialName", fmt.Sprintf("has no effect with mode %s", t.Mode),
			"remove it or write SIMPLE or MUTUAL")
	}
	if t.Mode == networking.ClientTLSSettings_DISABLE {
		for name, set := range map[string]bool{"sni": t.Sni != "",
			"subjectAltNames": len(t.SubjectAltNames) > 0} {
			if set {
				c.warn(field+"."+name, "has no effect with mode DISABLE",
					"remove it or write SIMPLE or MUTUAL")
			}
		}
	}
	c.credential(field+".credentialName", t.CredentialName)
	if t.GetInsecureSkipVerify().GetValue() {
		c.skipVerify(field, t)
	}
	if t.Mode == networking.ClientTLSSettings_MUTUAL && t.CredentialName == "" {
		for _, f := range files[:2] {
			if f.path == "" {
				c.fail(field+"."+f.name, "is missing: MUTUAL shows a certificate",
					"give the path of the file, or write SIMPLE")
			}
		}
	}
	if t.Mode == networking.ClientTLSSettings_SIMPLE && (t.ClientCertificate != "" ||
		t.PrivateKey != "") {
		c.warn(field+".clientCertificate", "has no effect: SIMPLE shows no certificate",
			"write MUTUAL or remove it")
	}
	if t.Sni != "" && whyNoHost(t.Sni, false) != "" && origin {
		c.fail(field+".sni", whyNoHost(t.Sni, false), "write the name that the certificate is for")
	}
	for i, name := range t.SubjectAltNames {
		if name == "" {
			c.fail(fmt.Sprintf("%s.subjectAltNames[%d]", field, i), "is empty",
				"write a name that the certificate has, or remove it")
		}
	}
}

// skipVerify checks insecureSkipVerify and the settings that it makes useless.
func (c *checker) skipVerify(field string, t *networking.ClientTLSSettings) {
	if t.Mode != networking.ClientTLSSettings_SIMPLE &&
		t.Mode != networking.ClientTLSSettings_MUTUAL {
		c.warn(field+".insecureSkipVerify", fmt.Sprintf("has no effect with mode %s", t.Mode),
			"remove it")
		return
	}
	const message = "excludes insecureSkipVerify, and both are given"
	if t.CaCertificates != "" {
		c.fail(field+".caCertificates", message, "keep one")
	}
	if len(t.SubjectAltNames) > 0 {
		c.fail(field+".subjectAltNames", message, "keep one")
	}
	if t.CaCrl != "" {
		c.warn(field+".caCrl", "has no effect with insecureSkipVerify", "keep one")
	}
}
