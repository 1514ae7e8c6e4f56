package translate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/resource"
)

// Prefixes of the statistics and metadata of filters that allow or deny requests, as in Istio.
const (
	networkStatPrefix = "tcp."

	dryRunAllow = "istio_dry_run_allow_"
	dryRunDeny  = "istio_dry_run_deny_"
)

// AuthorizationFilters holds the filters for the AuthorizationPolicies of a proxy. The filters
// precede those for routing and forwarding: first external authorizers, then AUDIT, DENY and ALLOW.
type AuthorizationFilters struct {
	ExtAuthzHTTP []*hcmv3.HttpFilter // filters that precede the verification of tokens
	RBACHTTP     []*hcmv3.HttpFilter // filters that follow the verification of tokens
	// network filters for connections that are not parsed as HTTP: external authorizers, and all
	// others
	ExtAuthzNetwork, RBACNetwork []*listenerv3.Filter

	Origins     []resource.Origin
	Problems    []object.Problem
	HostsRead   []string // sorted hosts of the external authorizers
	Authorizers []ExternalAuthorizer
}

// ExternalAuthorizer is an external authorizer that a policy needs, identified by its host.
type ExternalAuthorizer struct {
	Policy *object.Object
	Host   string
}

// actions lists the actions of policies that Envoy evaluates itself, in the order of their filters.
var actions = []struct {
	policy security.AuthorizationPolicy_Action
	filter rbacv3.RBAC_Action
}{
	{security.AuthorizationPolicy_AUDIT, rbacv3.RBAC_LOG},
	{security.AuthorizationPolicy_DENY, rbacv3.RBAC_DENY},
	{security.AuthorizationPolicy_ALLOW, rbacv3.RBAC_ALLOW},
}

// AuthorizationPolicies translates the AuthorizationPolicies of a proxy. If Envoy would refuse the
// result, which validation should prevent, the filters deny everything.
func AuthorizationPolicies(w *model.Mesh, node model.Node) *AuthorizationFilters {
	policies := w.SecurityPolicies(object.AuthorizationPolicy, node)
	out, err := authorize(w, policies)
	if err == nil {
		return out
	}
	deny := DenyAll(out.Origins...)
	problem := policies[0].NewProblem(object.Finding{Severity: condition.Error,
		Message: "everything is denied, as Envoy would refuse the policies: " + err.Error(),
		Fix:     "correct the value it names"})
	return &AuthorizationFilters{RBACHTTP: deny.RBACHTTP, RBACNetwork: deny.RBACNetwork,
		Origins: deny.Origins, Problems: []object.Problem{problem}}
}

func authorize(w *model.Mesh, policies []*object.Object) (*AuthorizationFilters, error) {
	out := &AuthorizationFilters{}
	byAction := map[security.AuthorizationPolicy_Action][]*object.Object{}
	for _, o := range policies {
		action := o.Spec.(*security.AuthorizationPolicy).Action
		byAction[action] = append(byAction[action], o)
		out.Origins = append(out.Origins, o.Origin())
	}
	m := w.MeshConfig()
	if err := out.authorizers(w, byAction[security.AuthorizationPolicy_CUSTOM]); err != nil {
		return out, err
	}
	for _, action := range actions {
		policies := byAction[action.policy]
		if len(policies) == 0 {
			continue
		}
		var enforced, shadow []*object.Object
		for _, o := range policies {
			if isDryRunPolicy(o) {
				shadow = append(shadow, o)
			} else {
				enforced = append(enforced, o)
			}
		}
		rules := func(policies []*object.Object, connections bool) *rbacv3.RBAC {
			if len(policies) == 0 {
				return nil
			}
			return rulesOf(policies, action.filter, m, connections)
		}
		if err := out.add(rules(enforced, false), rules(shadow, false), rules(enforced, true),
			rules(shadow, true)); err != nil {
			return out, err
		}
	}
	return out, nil
}

// add appends the filters of one action, for requests and for connections. Any of the rules may be
// nil.
func (a *AuthorizationFilters) add(requests, requestShadow, connections,
	connectionShadow *rbacv3.RBAC) error {
	forRequests, err := guard(rbac.RequestFilter, &httprbacv3.RBAC{Rules: requests,
		ShadowRules: requestShadow, ShadowRulesStatPrefix: shadowPrefix(requestShadow)})
	if err != nil {
		return err
	}
	forConnections, err := networkFilter(rbac.ConnectionFilter, &networkrbacv3.RBAC{Rules: connections,
		ShadowRules: connectionShadow, ShadowRulesStatPrefix: shadowPrefix(connectionShadow),
		StatPrefix: networkStatPrefix})
	a.RBACHTTP = append(a.RBACHTTP, forRequests)
	a.RBACNetwork = append(a.RBACNetwork, forConnections)
	return err
}

// guard returns an HTTP filter that allows or denies requests.
func guard(name string, config validated) (*hcmv3.HttpFilter, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("filter %s: %w", name, err)
	}
	return httpFilter(name, config), nil
}

// shadowPrefix returns the prefix of the statistics and metadata of dry-run policies. As in Istio,
// it is set even without such policies.
func shadowPrefix(rules *rbacv3.RBAC) string {
	switch rules.GetAction() {
	case rbacv3.RBAC_ALLOW:
		return dryRunAllow
	case rbacv3.RBAC_DENY:
		return dryRunDeny
	}
	return ""
}

// isDryRunPolicy reports whether an AuthorizationPolicy is evaluated but not enforced.
func isDryRunPolicy(o *object.Object) bool {
	dry, _ := strconv.ParseBool(o.Annotations[object.DryRunAnnotation])
	return dry
}

// rulesOf returns the RBAC rules of one or more policies with the same action. An ALLOW
// configuration without rules makes Envoy deny everything.
func rulesOf(policies []*object.Object, action rbacv3.RBAC_Action, m *mesh.Config,
	connections bool) *rbacv3.RBAC {
	rules := &rbacv3.RBAC{Action: action, Policies: map[string]*rbacv3.Policy{}}
	for _, o := range policies {
		addRules(rules, o, "", rbac.Translator{Namespace: o.Namespace,
			TrustDomains:    m.TrustDomainWithAliases(),
			IsNetworkFilter: connections, IsAllow: action == rbacv3.RBAC_ALLOW})
	}
	return rules
}

// addRules adds the rules of a policy to an RBAC configuration, under Istio's names with a prefix.
func addRules(rules *rbacv3.RBAC, o *object.Object, prefix string, t rbac.Translator) {
	all := o.Spec.(*security.AuthorizationPolicy).Rules
	for i, rule := range all {
		if policy := t.Policy(rule); policy != nil {
			rules.Policies[ruleName(o, prefix, i)] = policy
		}
	}
	if len(all) == 0 {
		rules.Policies[ruleName(o, prefix, 0)] = rbac.MatchNothing()
	}
}

func ruleName(o *object.Object, prefix string, rule int) string {
	return fmt.Sprintf("%sns[%s]-policy[%s]-rule[%d]", prefix, o.Namespace, o.Name, rule)
}

// authorizers adds the filters of policies with the action CUSTOM. A policy whose authorizer cannot
// be used denies what its rules match. As in Istio, no authorizer can be used if the policies name
// several.
func (a *AuthorizationFilters) authorizers(w *model.Mesh, policies []*object.Object) error {
	byProvider := map[string][]*object.Object{}
	for _, o := range policies {
		name := o.Spec.(*security.AuthorizationPolicy).GetProvider().GetName()
		byProvider[name] = append(byProvider[name], o)
	}
	for _, name := range slices.Sorted(maps.Keys(byProvider)) {
		prefix := fmt.Sprintf("%s-%s-", authorizerPrefix, name)
		requests, connections := newDenial(), newDenial()
		for _, o := range byProvider[name] {
			t := rbac.Translator{Namespace: o.Namespace,
				TrustDomains: w.MeshConfig().TrustDomainWithAliases()}
			addRules(requests, o, prefix, t)
			t.IsNetworkFilter = true
			addRules(connections, o, prefix, t)
		}
		cluster, host, why := a.authorizer(w, name, len(byProvider))
		if why != "" {
			for _, o := range byProvider[name] {
				a.Problems = append(a.Problems, o.NewProblem(object.Finding{Field: "provider.name",
					Severity: condition.Error, Message: why + ": everything that the rules match is denied",
					Fix: authorizerFix}))
			}
			if err := a.deny(requests, connections); err != nil {
				return err
			}
			continue
		}
		for _, o := range byProvider[name] {
			a.Authorizers = append(a.Authorizers, ExternalAuthorizer{o, host})
		}
		if err := a.external(w.MeshConfig().ExternalAuthorizers[name], name, cluster, host,
			requests,
			connections); err != nil {
			return err
		}
	}
	slices.Sort(a.HostsRead)
	return nil
}

func newDenial() *rbacv3.RBAC {
	return &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: map[string]*rbacv3.Policy{}}
}

// deny adds filters that deny what rules of CUSTOM policies match.
func (a *AuthorizationFilters) deny(requests, connections *rbacv3.RBAC) error {
	const reason = "-deny-due-to-bad-CUSTOM-action"
	renamed := func(rules *rbacv3.RBAC) *rbacv3.RBAC {
		out := newDenial()
		for name, policy := range rules.Policies {
			out.Policies[name+reason] = policy
		}
		return out
	}
	forRequests, err := guard(rbac.RequestFilter, &httprbacv3.RBAC{Rules: renamed(requests)})
	if err != nil {
		return err
	}
	forConnections, err := networkFilter(rbac.ConnectionFilter, &networkrbacv3.RBAC{
		Rules: renamed(connections), StatPrefix: networkStatPrefix})
	a.ExtAuthzHTTP = append(a.ExtAuthzHTTP, forRequests)
	a.ExtAuthzNetwork = append(a.ExtAuthzNetwork, forConnections)
	return err
}
