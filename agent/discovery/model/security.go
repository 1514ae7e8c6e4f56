package model

import (
	"maps"
	"slices"

	types "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/discovery/object"
)

// GatewayNameLabel is the label of proxies that implement a Gateway of Kubernetes' Gateway API.
const GatewayNameLabel = "gateway.networking.k8s.io/gateway-name"

// API group and kind of a target that names a Gateway of Kubernetes' Gateway API.
const (
	GatewayTargetGroup = "gateway.networking.k8s.io"
	GatewayTargetKind  = "Gateway"
)

// policies indexes AuthorizationPolicies, RequestAuthentications and extensions by one label of
// their selector, so that a proxy is compared with few of them.
type policies map[pair][]*object.Object

// targeted is the common interface of objects that may have targets.
type targeted interface {
	GetSelector() *types.WorkloadSelector
	GetTargetRefs() []*types.PolicyTargetReference
}

// policyTargets returns the targets of a security policy or Telemetry.
func policyTargets(o *object.Object) []*types.PolicyTargetReference {
	all := o.Spec.(targeted).GetTargetRefs()
	former, ok := o.Spec.(interface {
		GetTargetRef() *types.PolicyTargetReference
	})
	if ok && len(all) == 0 && former.GetTargetRef() != nil {
		return []*types.PolicyTargetReference{former.GetTargetRef()}
	}
	return all
}

// change updates the index for a change of a policy.
func (p policies) change(c object.Change) {
	if c.Old != nil {
		for _, key := range policyPairs(c.Old) {
			remove(p, key, c.Old)
		}
	}
	if c.New != nil {
		for _, key := range policyPairs(c.New) {
			insert(p, key, c.New, object.CompareAge)
		}
	}
}

// policyPairs returns the labels under which a policy is indexed, without duplicates.
func policyPairs(o *object.Object) []pair {
	targets := policyTargets(o)
	selector := o.Spec.(targeted).GetSelector().GetMatchLabels()
	switch {
	case len(targets) > 0:
		var all []pair
		for _, t := range targets {
			key := pair{o.Namespace, GatewayNameLabel, t.GetName()}
			if isGateway(o, t) && !slices.Contains(all, key) {
				all = append(all, key)
			}
		}
		return all
	case len(selector) == 0:
		return []pair{{namespace: o.Namespace}}
	}
	key := slices.Min(slices.Collect(maps.Keys(selector)))
	return []pair{{o.Namespace, key, selector[key]}}
}

// isGateway reports whether a target of a policy is a Gateway in the policy's namespace. Proxies of
// this server cannot match any other target.
func isGateway(o *object.Object, t *types.PolicyTargetReference) bool {
	return t.GetGroup() == GatewayTargetGroup && t.GetKind() == GatewayTargetKind &&
		(t.GetNamespace() == "" || t.GetNamespace() == o.Namespace)
}

// SecurityPolicies returns the objects of a kind that apply to a proxy (AuthorizationPolicies,
// RequestAuthentications or extensions): those without a namespace, then those of the root
// namespace, then those of the proxy's own namespace, each oldest first.
func (w *Mesh) SecurityPolicies(kind object.Kind, node Node) []*object.Object {
	namespaces := []string{"", w.mesh.RootNamespace}
	if node.Namespace != w.mesh.RootNamespace {
		namespaces = append(namespaces, node.Namespace)
	}
	var all []*object.Object
	for _, namespace := range namespaces {
		first := len(all)
		for _, key := range pairs(namespace, node.Labels) {
			for _, o := range w.policies[key] {
				if o.Kind == kind && w.selectsProxy(o, node) {
					all = append(all, o)
				}
			}
		}
		slices.SortFunc(all[first:], object.CompareAge)
	}
	return all
}

// selectsProxy reports whether an AuthorizationPolicy, RequestAuthentication or extension applies
// to a proxy. A policy in the root namespace applies to proxies of all namespaces, unless it has
// targets.
func (w *Mesh) selectsProxy(o *object.Object, node Node) bool {
	return (o.Namespace == node.Namespace || o.Namespace == w.mesh.RootNamespace ||
		o.Namespace == "") && selects(o, node)
}

// selects reports whether an object's selector or targets match a proxy. Targets match only in the
// object's namespace. The caller compares namespaces for selectors.
func selects(o *object.Object, node Node) bool {
	if targets := policyTargets(o); len(targets) > 0 {
		gateway, ok := node.Labels[GatewayNameLabel]
		return ok && o.Namespace == node.Namespace &&
			slices.ContainsFunc(targets, func(t *types.PolicyTargetReference) bool {
				return isGateway(o, t) && t.GetName() == gateway
			})
	}
	return SelectorMatches(o.Spec.(targeted).GetSelector().GetMatchLabels(), node.Labels)
}

// AffectsSecurity reports whether a change affects the AuthorizationPolicies or
// RequestAuthentications of a proxy, or the key sets that these use.
func (w *Mesh) AffectsSecurity(touched ChangeSummary, node Node) bool {
	tokens := touched.KeySetsChanged && len(w.JWTRules(node)) > 0
	return tokens || slices.ContainsFunc(touched.ChangedPolicies, func(o *object.Object) bool {
		return w.selectsProxy(o, node)
	})
}
