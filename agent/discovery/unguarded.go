package discovery

import (
	"bytes"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/rbac"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// guard is a filter of a listener that allows or denies access.
type guard struct {
	name   string
	config *anypb.Any
}

// admitsWithoutGuards reports whether the accepted version of a listener may admit a request that
// the newest version denies: a filter that allows or denies access is missing, or its rules may
// admit more.
func admitsWithoutGuards(accepted, newest *resource.Resource) bool {
	return len(missingGuards(accepted, newest)) > 0
}

// admitsWithoutTokens is like admitsWithoutGuards, for filters that verify tokens.
func admitsWithoutTokens(accepted, newest *resource.Resource) bool {
	return slices.ContainsFunc(missingGuards(accepted, newest), func(g guard) bool {
		return g.name == rbac.TokenFilter
	})
}

// missingGuards returns the guards in the newest version of a listener that may deny a request
// which the accepted version admits.
func missingGuards(accepted, newest *resource.Resource) []guard {
	before := guards(accepted)
	return slices.DeleteFunc(guards(newest), func(g guard) bool {
		return slices.ContainsFunc(before, g.admitsNoLessThan) || g.admitsAll()
	})
}

// guards returns the filters that allow or deny, of all filter chains of a listener.
func guards(r *resource.Resource) []guard {
	var all []guard
	for _, chain := range filterChains(r) {
		eachFilter(chain, func(name string, config *anypb.Any) {
			if translate.IsSecurityFilter(name) {
				all = append(all, guard{name, config})
			}
		})
	}
	return all
}

// eachFilter visits the network filters and HTTP filters of a filter chain.
func eachFilter(chain *listenerv3.FilterChain, visit func(name string, config *anypb.Any)) {
	for _, f := range chain.GetFilters() {
		visit(f.GetName(), f.GetTypedConfig())
		var manager hcmv3.HttpConnectionManager
		if f.GetTypedConfig().UnmarshalTo(&manager) != nil {
			continue
		}
		for _, f := range manager.GetHttpFilters() {
			visit(f.GetName(), f.GetTypedConfig())
		}
	}
}

// rules returns the rules of a filter for AuthorizationPolicies; nil if the filter evaluates rules
// without enforcing them. ok is false for other filters, including external authorizers.
func (g guard) rules() (rules *rbacv3.RBAC, ok bool) {
	var requests httprbacv3.RBAC
	if g.config.UnmarshalTo(&requests) == nil {
		return requests.Rules, translate.IsDryRunStatPrefix(requests.ShadowRulesStatPrefix)
	}
	var connections networkrbacv3.RBAC
	if g.config.UnmarshalTo(&connections) == nil {
		return connections.Rules, translate.IsDryRunStatPrefix(connections.ShadowRulesStatPrefix)
	}
	return nil, false
}

// admitsAll reports whether a filter denies nothing.
func (g guard) admitsAll() bool {
	rules, ok := g.rules()
	return ok && (rules == nil || rules.Action == rbacv3.RBAC_LOG)
}

// admitsNoLessThan reports whether a filter admits everything that another filter of the same kind
// admits.
func (g guard) admitsNoLessThan(other guard) bool {
	if g.name != other.name || bytes.Equal(g.config.GetValue(), other.config.GetValue()) {
		return g.name == other.name
	}
	rules, ok := g.rules()
	before, known := other.rules()
	if !ok || !known || rules == nil || before == nil || rules.Action != before.Action {
		return false
	}
	if rules.Action == rbacv3.RBAC_DENY {
		rules, before = before, rules
	}
	return containsRules(rules, before)
}

// containsRules reports whether one filter has all rules of another. It ignores the names of rules.
func containsRules(one, other *rbacv3.RBAC) bool {
	has := map[string]bool{}
	for _, p := range one.Policies {
		has[object.EncodeDeterministic(proto.Message(p))] = true
	}
	for _, p := range other.Policies {
		if !has[object.EncodeDeterministic(proto.Message(p))] {
			return false
		}
	}
	return true
}
