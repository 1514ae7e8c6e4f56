package auth

import (
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Identity is a service account in a trust domain.
type Identity struct{ Domain, Namespace, Account string }

const scheme = "spiffe://"

// String returns the identity as a SPIFFE ID.
func (id Identity) String() string {
	return scheme + id.Domain + "/ns/" + id.Namespace + "/sa/" + id.Account
}

// ParseIdentity parses a SPIFFE ID of the form spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT.
func ParseIdentity(text string) (Identity, bool) {
	rest, ok := strings.CutPrefix(text, scheme)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 || parts[1] != "ns" || parts[3] != "sa" ||
		!isName(parts[0]) || !isName(parts[2]) || !isName(parts[4]) {
		return Identity{}, false
	}
	return Identity{parts[0], parts[2], parts[4]}, true
}

// isName reports whether a text may be a path segment of a SPIFFE ID.
func isName(text string) bool {
	return text != "" && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz"+
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

// ofCertificate returns the identity in a verified certificate.
func ofCertificate(c *x509.Certificate, domains []string, now time.Time) (Identity, error) {
	if now.After(c.NotAfter) { // TLS has checked the expiry only when the connection was made
		return Identity{}, fmt.Errorf("the certificate expired on %s UTC",
			c.NotAfter.UTC().Format(time.DateTime))
	}
	if len(c.URIs) != 1 {
		return Identity{}, fmt.Errorf("the certificate has %d URIs, not one SPIFFE ID", len(c.URIs))
	}
	id, ok := ParseIdentity(c.URIs[0].String())
	if !ok {
		return Identity{}, fmt.Errorf("%q is not spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT",
			ShortenForLog(c.URIs[0].String()))
	}
	if !slices.Contains(domains, id.Domain) {
		return Identity{}, fmt.Errorf("%s is not of trust domain %s", id,
			strings.Join(domains, " or "))
	}
	return id, nil
}

// ofSubject returns the identity of a token whose subject is sub, which must have the form
// system:serviceaccount:NAMESPACE:ACCOUNT.
func ofSubject(subject string, domains []string) (Identity, error) {
	parts := strings.Split(subject, ":")
	if len(parts) != 4 || parts[0] != "system" || parts[1] != "serviceaccount" {
		return Identity{}, fmt.Errorf("subject %q is not system:serviceaccount:NAMESPACE:ACCOUNT",
			ShortenForLog(subject))
	}
	id := Identity{domains[0], parts[2], parts[3]}
	if !isName(id.Namespace) || !isName(id.Account) {
		return Identity{}, fmt.Errorf("subject %q has an invalid namespace or account name",
			ShortenForLog(subject))
	}
	return id, nil
}

// confine returns the node with the namespace of the identity. It returns an error if the node
// names another namespace or another service account.
func (id Identity) confine(node *corev3.Node) (*corev3.Node, error) {
	fields := node.GetMetadata().GetFields()
	namespace := fields["NAMESPACE"].GetStringValue()
	for _, claimed := range []string{namespace, domainNamespace(node.GetId())} {
		if claimed != "" && claimed != id.Namespace {
			return nil, fmt.Errorf("the node's namespace %q is not the namespace of %s",
				ShortenForLog(claimed), id)
		}
	}
	account := fields["SERVICE_ACCOUNT"].GetStringValue()
	if account != "" && account != id.Account {
		return nil, fmt.Errorf("the node's service account %q is not the account of %s",
			ShortenForLog(account), id)
	}
	if namespace != "" {
		return node, nil
	}
	confined := proto.CloneOf(node)
	confined.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
		"NAMESPACE": structpb.NewStringValue(id.Namespace)}}
	without := maps.Clone(fields)
	delete(without, "NAMESPACE")
	maps.Copy(confined.Metadata.Fields, without)
	return confined, nil
}

// domainNamespace returns the namespace in the domain of a proxy's ID, type~address~name~domain, if
// the domain has Istio's form NAMESPACE.svc.DOMAIN; else "".
func domainNamespace(id string) string {
	parts := strings.Split(id, "~")
	namespace, rest, _ := strings.Cut(parts[len(parts)-1], ".")
	if len(parts) == 4 && strings.HasPrefix(rest, "svc.") {
		return namespace
	}
	return ""
}
