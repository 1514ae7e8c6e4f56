package explain

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	networkauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/resource"
)

// guard evaluates an HTTP filter that controls access, and reports whether the filter ends the
// request; known is false for other filters.
func (e *explanation) guard(f *hcmv3.HttpFilter, d *listener) (ended, known bool) {
	if config, ok := unpack(f.GetTypedConfig(), &rbacv3.RBAC{}); ok {
		prefix := config.ShadowRulesStatPrefix
		return e.authorize(config.Rules, config.ShadowRules, prefix, d), true
	}
	if config, ok := unpack(f.GetTypedConfig(), &jwtv3.JwtAuthentication{}); ok {
		return e.authenticate(config, d), true
	}
	if config, ok := unpack(f.GetTypedConfig(), &extauthzv3.ExtAuthz{}); ok {
		to := authorizer{config.FilterEnabledMetadata,
			config.GetHttpService().GetServerUri().GetCluster(), config.FailureModeAllow}
		if to.cluster == "" {
			to.cluster = config.GetGrpcService().GetEnvoyGrpc().GetClusterName()
		}
		e.external(to, d)
		return false, true
	}
	return e.extension(f.Name, f.GetConfigDiscovery(), d)
}

// guardConnection evaluates a network filter that controls access, as guard does for HTTP filters.
func (e *explanation) guardConnection(f *listenerv3.Filter, d *listener) (ended, known bool) {
	if config, ok := unpack(f.GetTypedConfig(), &networkrbacv3.RBAC{}); ok {
		return e.authorize(config.Rules, config.ShadowRules, config.ShadowRulesStatPrefix, d), true
	}
	if config, ok := unpack(f.GetTypedConfig(), &networkauthzv3.ExtAuthz{}); ok {
		e.external(authorizer{config.FilterEnabledMetadata,
			config.GetGrpcService().GetEnvoyGrpc().GetClusterName(), config.FailureModeAllow}, d)
		return false, true
	}
	return e.extension(f.Name, f.GetConfigDiscovery(), d)
}

// authorize evaluates the rules of an RBAC filter, and reports whether they deny the request.
func (e *explanation) authorize(rules, shadow *rbacconfigv3.RBAC, prefix string,
	d *listener) (denied bool) {
	if shadow != nil {
		e.shadow(shadow, prefix, d)
	}
	if rules == nil {
		return false
	}
	found := e.effective(rules)
	origins, name := e.policy(found.policy, d)
	switch action := rules.Action; {
	case action == rbacconfigv3.RBAC_LOG:
		if found.matches == always {
			e.step("policy", "", origins, "audited by "+name)
		}
	case found.matches == maybe:
		e.open("whether "+name+" matches, action "+action.String(), origins)
	case action == rbacconfigv3.RBAC_DENY && found.matches == always:
		e.deny("denied by "+name, origins)
		return true
	case action == rbacconfigv3.RBAC_ALLOW && found.matches == never:
		origins, names := e.policies(rules, d)
		e.deny("denied: no rule matches of "+names, origins)
		return true
	case action == rbacconfigv3.RBAC_ALLOW:
		e.step("policy", "", origins, "allowed by "+name)
	}
	return false
}

// deny ends the request with status 403, or closes the connection if there is no HTTP connection
// manager.
func (e *explanation) deny(reason string, origins []resource.Origin) {
	e.step("policy", "", origins, reason)
	fix := "use a client, request or token that the policy allows, or change it"
	if e.hcm == nil {
		e.end(OutcomeConnectionClosed, 0, reason, fix)
		return
	}
	e.end(OutcomeLocalReply, http.StatusForbidden, reason, fix)
	e.answer.Body = "RBAC: access denied"
}

// shadow evaluates RBAC rules that deny nothing and only set metadata: the rules of a dry run, and
// the rules that decide whether an external authorizer is called.
func (e *explanation) shadow(rules *rbacconfigv3.RBAC, prefix string, d *listener) {
	found := e.effective(rules)
	if found.matches != never {
		filter := rbac.RequestFilter
		if e.hcm == nil {
			filter = rbac.ConnectionFilter
		}
		e.publish(filter, map[string]any{prefix + "shadow_effective_policy_id": found.policy})
	}
	if strings.HasPrefix(prefix, "istio_ext_authz_") {
		if e.custom = found; found.matches == maybe {
			origins, name := e.policy(found.policy, d)
			e.open("whether "+name+" matches, action CUSTOM", origins)
		}
		return
	}
	allowed := found.matches
	if rules.Action == rbacconfigv3.RBAC_DENY {
		allowed = allowed.not()
	}
	origins, name := e.policy(found.policy, d)
	if found.matches == never {
		origins, name = e.policies(rules, d)
		name = "no rule of " + name
	}
	result := map[truth]string{never: "denied", maybe: "allowed or denied", always: "allowed"}[allowed]
	e.step("policy", "", origins, "dry run: would be "+result+" by "+name)
}

// effective is the policy of an RBAC filter that determines the result: the first that matches; if
// none does, the first that may match.
type effective struct {
	policy  string
	matches truth
}

// effective returns the policy that determines the result. Envoy evaluates policies in the order of
// their names.
func (e *explanation) effective(rules *rbacconfigv3.RBAC) (found effective) {
	e.missing = nil
	for _, name := range slices.Sorted(maps.Keys(rules.Policies)) {
		policy := rules.Policies[name]
		if matches := min(some(policy.Permissions, e.permits),
			some(policy.Principals, e.identifies)); matches > found.matches {
			found = effective{name, matches}
		}
		if found.matches == always {
			e.missing = nil
			break
		}
	}
	return found
}

// open records that a policy's result depends on facts that the request does not state.
func (e *explanation) open(decision string, origins []resource.Origin) {
	facts := list(slices.Sorted(maps.Keys(e.missing)))
	e.step("policy", "", origins, "depends on "+facts)
	e.unknown("%s: it depends on %s", decision, facts)
}

// policy returns the origin and a description of a policy. The policy's name in the rules is
// Istio's ns[NAMESPACE]-policy[NAME]-rule[INDEX]; rules with the action CUSTOM have a prefix before
// it.
func (e *explanation) policy(name string, d *listener) ([]resource.Origin, string) {
	namespace, policy, rule, ok := splitPolicy(name)
	if !ok {
		return nil, name
	}
	for _, o := range d.resource.Origins {
		if o.Kind == string(object.AuthorizationPolicy) && o.Namespace == namespace && o.Name == policy {
			return []resource.Origin{o}, fmt.Sprintf("%s, rule %s", o, rule)
		}
	}
	return nil, fmt.Sprintf("%s %s/%s, rule %s", object.AuthorizationPolicy, namespace, policy, rule)
}

func splitPolicy(name string) (namespace, object, rule string, ok bool) {
	_, rest, first := strings.Cut(name, "ns[")
	namespace, rest, second := strings.Cut(rest, "]-policy[")
	object, rest, third := strings.Cut(rest, "]-rule[")
	return namespace, object, strings.TrimSuffix(rest, "]"), first && second && third
}

// policies returns the origins and a description of all objects from which rules were translated.
func (e *explanation) policies(rules *rbacconfigv3.RBAC, d *listener) ([]resource.Origin, string) {
	var origins []resource.Origin
	var names []string
	for _, name := range slices.Sorted(maps.Keys(rules.Policies)) {
		of, text := e.policy(name, d)
		text, _, _ = strings.Cut(text, ", rule ")
		if !slices.Contains(names, text) {
			origins, names = append(origins, of...), append(names, text)
		}
	}
	if len(rules.Policies) == 0 { // no policy has rules that apply to TCP connections
		for _, o := range objectsOf(d, string(object.AuthorizationPolicy)) {
			origins, names = append(origins, o), append(names, o.String())
		}
	}
	if len(names) == 0 {
		return nil, "a policy without rules"
	}
	if more := len(names) - mostListening; more > 0 {
		names = append(names[:mostListening], fmt.Sprintf("%d more", more))
	}
	return origins, list(names)
}
