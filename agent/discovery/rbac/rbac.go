// Package rbac translates the rules of AuthorizationPolicies into policies of Envoy's RBAC filters,
// as istiod does.
//
// A rule becomes one policy. Each element of its "to" is a permission, each element of its "from" a
// principal, and a condition of its "when" is part of all permissions or of all principals. A field
// with values matches if any of them does; its "not" form if none does.
package rbac

import (
	"slices"
	"strings"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	security "istio.io/api/security/v1beta1"
)

// Names of the filters that control access, and of those on which they depend. They are also the
// namespaces of the filters' dynamic metadata.
const (
	RequestFilter    = "envoy.filters.http.rbac"
	ConnectionFilter = "envoy.filters.network.rbac"
	// With dynamic DNS, HTTPResolverFilter resolves the hosts of requests, and SNIResolverFilter
	// the server names (SNI) of connections.
	HTTPResolverFilter = "envoy.filters.http.dynamic_forward_proxy"
	SNIResolverFilter  = "envoy.filters.network.sni_dynamic_forward_proxy"
	// HTTP filter that verifies the tokens of requests
	TokenFilter = "envoy.filters.http.jwt_authn"

	TokenClaims = "payload" // key in the metadata of TokenFilter with the claims of a valid token
)

// Translator translates the rules of one policy. The rules must be valid.
type Translator struct {
	Namespace    string   // namespace of the policy, and of service accounts without one
	TrustDomains []string // trust domain of the mesh, followed by its aliases
	// IsNetworkFilter reports whether the filter is a network filter. A network filter cannot match
	// attributes of requests.
	IsNetworkFilter bool
	// IsAllow reports whether the policy's action is ALLOW. If an attribute cannot be matched, its
	// rule matches nothing with ALLOW; with other actions the attribute is ignored. Access is
	// therefore never widened.
	IsAllow bool
}

// Attributes of rules, named like the keys of conditions ("when"). An attribute that cannot be used
// in a condition has a name that is not valid as a key.
const (
	sourceIP          = "source.ip"
	remoteIP          = "remote.ip"
	sourceNamespace   = "source.namespace"
	sourceAccount     = "source.serviceAccount"
	sourceTrustDomain = "source.trustDomain"
	sourcePrincipal   = "source.principal"
	requestPrincipal  = "request.auth.principal"
	requestAudiences  = "request.auth.audiences"
	requestPresenter  = "request.auth.presenter"
	requestClaims     = "request.auth.claims"
	requestHeaders    = "request.headers"
	destinationIP     = "destination.ip"
	destinationPort   = "destination.port"
	connectionSNI     = "connection.sni"
	filterMetadata    = "experimental.envoy.filters."

	requestHost   = "host"
	requestMethod = "method"
	requestPath   = "path"
)

// IsConditionKey reports whether a condition of a rule may have the key.
func IsConditionKey(key string) bool {
	return ofPermission(key) || slices.Contains([]string{sourceIP, remoteIP, sourceNamespace,
		sourceAccount, sourceTrustDomain, sourcePrincipal, requestPrincipal, requestAudiences,
		requestPresenter}, key) || IsBracketedConditionKey(key)
}

// IsBracketedConditionKey reports whether a key contains a name in brackets, such as
// request.headers[NAME].
func IsBracketedConditionKey(key string) bool {
	return strings.HasPrefix(key, requestHeaders) || strings.HasPrefix(key, requestClaims) ||
		strings.HasPrefix(key, filterMetadata)
}

// ofPermission reports whether a condition belongs to the permissions of a rule.
func ofPermission(key string) bool {
	return key == destinationIP || key == destinationPort || key == connectionSNI ||
		strings.HasPrefix(key, filterMetadata)
}

// ofRequest reports whether an attribute exists for HTTP requests only.
func ofRequest(attribute string) bool {
	return attribute == requestHost || attribute == requestMethod || attribute == requestPath ||
		strings.HasPrefix(attribute, "request.")
}

// predicate is one condition of a rule, or one field of its sources or operations.
type predicate struct {
	attribute         string
	values, notValues []string
}

// Policy translates a rule. It returns nil if the rule cannot match anything.
func (t Translator) Policy(rule *security.Rule) *rbacv3.Policy {
	var ofTo, ofFrom []predicate
	for _, when := range rule.When {
		p := predicate{when.GetKey(), when.GetValues(), when.GetNotValues()}
		if ofPermission(p.attribute) {
			ofTo = append(ofTo, p)
		} else {
			ofFrom = append(ofFrom, p)
		}
	}
	policy := &rbacv3.Policy{}
	for _, to := range operations(rule) {
		all, ok := conjunction(t, append(to, ofTo...), permissions, t.permission)
		if !ok {
			return nil
		}
		policy.Permissions = append(policy.Permissions, all)
	}
	for _, from := range sources(rule) {
		all, ok := conjunction(t, append(from, ofFrom...), principals, t.principal)
		if !ok {
			return nil
		}
		policy.Principals = append(policy.Principals, all)
	}
	return policy
}

// operations returns the predicates for each operation of a rule. Without operations it returns one
// empty list.
func operations(rule *security.Rule) [][]predicate {
	if len(rule.To) == 0 {
		return [][]predicate{nil}
	}
	all := make([][]predicate, 0, len(rule.To))
	for _, to := range rule.To {
		o := to.GetOperation()
		all = append(all, []predicate{
			{requestHost, o.GetHosts(), o.GetNotHosts()},
			{requestMethod, o.GetMethods(), o.GetNotMethods()},
			{requestPath, o.GetPaths(), o.GetNotPaths()},
			{destinationPort, o.GetPorts(), o.GetNotPorts()}})
	}
	return all
}

// sources returns the predicates for each source of a rule. Without sources it returns one empty
// list.
func sources(rule *security.Rule) [][]predicate {
	if len(rule.From) == 0 {
		return [][]predicate{nil}
	}
	all := make([][]predicate, 0, len(rule.From))
	for _, from := range rule.From {
		s := from.GetSource()
		all = append(all, []predicate{
			{sourcePrincipal, s.GetPrincipals(), s.GetNotPrincipals()},
			{requestPrincipal, s.GetRequestPrincipals(), s.GetNotRequestPrincipals()},
			{sourceAccount, s.GetServiceAccounts(), s.GetNotServiceAccounts()},
			{sourceTrustDomain, s.GetTrustDomains(), s.GetNotTrustDomains()},
			{sourceNamespace, s.GetNamespaces(), s.GetNotNamespaces()},
			{remoteIP, s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks()},
			{sourceIP, s.GetIpBlocks(), s.GetNotIpBlocks()}})
	}
	return all
}

// logic holds the functions that combine permissions or principals.
type logic[T any] struct {
	any     T
	and, or func(...T) T
	not     func(T) T
}

// conjunction combines predicates so that all of them must match. It returns false if nothing can
// match.
func conjunction[T any](t Translator, all []predicate, with logic[T],
	match func(attribute string, values []string) T) (T, bool) {
	var parts []T
	for _, p := range all {
		switch {
		case len(p.values)+len(p.notValues) == 0:
			continue
		case t.IsNetworkFilter && ofRequest(p.attribute) && t.IsAllow:
			return with.any, false
		case t.IsNetworkFilter && ofRequest(p.attribute):
			continue
		}
		if len(p.values) > 0 {
			parts = append(parts, match(p.attribute, p.values))
		}
		if len(p.notValues) > 0 {
			parts = append(parts, with.not(match(p.attribute, p.notValues)))
		}
	}
	if len(parts) == 0 {
		parts = []T{with.any}
	}
	return with.and(parts...), true
}

// each combines matchers for values so that any of them may match.
func each[T any](values []string, with logic[T], match func(value string) T) T {
	parts := make([]T, len(values))
	for i, value := range values {
		parts[i] = match(value)
	}
	return with.or(parts...)
}

// MatchNothing returns a policy that matches nothing, for an AuthorizationPolicy without rules.
func MatchNothing() *rbacv3.Policy {
	return &rbacv3.Policy{Permissions: []*rbacv3.Permission{permissions.not(permissions.any)},
		Principals: []*rbacv3.Principal{principals.not(principals.any)}}
}
