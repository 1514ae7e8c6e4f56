package mcp

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"outrider.org/outrider/agent/identity/pki"
)

// rootNamespace is that of a client whose token does not say one.
const rootNamespace = "istio-system"

// namespaceOf returns the namespace of the service account of a token: a server accepts no other
// one in the node.
func namespaceOf(tokenFile string) string {
	if tokenFile == "" {
		return rootNamespace
	}
	token, err := pki.Bearer{File: tokenFile}.Token()
	parts := strings.Split(token.Raw, ".")
	if err != nil || len(parts) != 3 {
		return rootNamespace
	}
	var claims struct {
		Subject string `json:"sub"` // system:serviceaccount:NAMESPACE:NAME
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
