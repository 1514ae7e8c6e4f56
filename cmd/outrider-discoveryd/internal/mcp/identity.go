package mcp

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"strings"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
)

// rootNamespace is the namespace in the node of a client whose certificate or token contains none.
const rootNamespace = "istio-system"

// namespaceOf returns the namespace for the node of the client: that in its certificate or, without
// a certificate, in its token. Servers accept no other namespace.
func namespaceOf(o Options) string {
	switch {
	case o.CertFile != "":
		return namespaceOfCertificate(o)
	case o.TokenFile != "":
		return namespaceOfToken(o.TokenFile)
	}
	return rootNamespace
}

// namespaceOfCertificate returns the namespace in the SPIFFE ID of the client's certificate.
func namespaceOfCertificate(o Options) string {
	pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
	if err != nil || len(pair.Leaf.URIs) != 1 {
		return rootNamespace
	}
	id, ok := auth.ParseIdentity(pair.Leaf.URIs[0].String())
	if !ok {
		return rootNamespace
	}
	return id.Namespace
}

func namespaceOfToken(tokenFile string) string {
	token, err := pki.BearerToken{File: tokenFile}.Token()
	parts := strings.Split(token.Raw, ".")
	if err != nil || len(parts) != 3 {
		return rootNamespace
	}
	var claims struct {
		Subject string `json:"sub"` // subject of the token: system:serviceaccount:NAMESPACE:NAME
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(payload, &claims)
	}
	subject := strings.Split(claims.Subject, ":")
	if err != nil || len(subject) != 4 || subject[2] == "" {
		return rootNamespace
	}
	return subject[2]
}
