package validate

import (
	"fmt"
	"slices"

	types "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

const (
	mostTargets        = 16 // maximum number of targets, from Istio's CRD
	mostSelectorLabels = 4096
)

// targets lists the kinds of targets that Istio knows, with their API groups.
var targets = map[string]string{"Service": "", "ServiceEntry": object.NetworkingGroup,
	model.GatewayTargetKind: model.GatewayTargetGroup, "GatewayClass": model.GatewayTargetGroup}

// targeted checks the fields that select the workloads of a policy, a Telemetry or an extension.
func (c *checker) targeted(p interface {
	GetSelector() *types.WorkloadSelector
	GetTargetRef() *types.PolicyTargetReference
	GetTargetRefs() []*types.PolicyTargetReference
}) {
	count := 0
	for _, is := range []bool{p.GetSelector() != nil, p.GetTargetRef() != nil,
		len(p.GetTargetRefs()) > 0} {
		if is {
			count++
		}
	}
	if count > 1 {
		c.fail("selector", "only one of selector, targetRef and targetRefs is possible",
			"remove the others")
	}
	labels := p.GetSelector().GetMatchLabels()
	if p.GetSelector() != nil && len(labels) == 0 {
		c.warn("selector", "has no labels, so the object is for all of its namespace",
			"write matchLabels, or remove it")
	}
	c.most("selector.matchLabels", len(labels), mostSelectorLabels)
	c.selector("selector.matchLabels", labels)
	if target := p.GetTargetRef(); target != nil {
		c.target("targetRef", target)
	}
	c.most("targetRefs", len(p.GetTargetRefs()), mostTargets)
	for i, target := range p.GetTargetRefs() {
		c.target(fmt.Sprintf("targetRefs[%d]", i), target)
	}
}

func (c *checker) target(field string, t *types.PolicyTargetReference) {
	group := t.GetGroup()
	if known, ok := targets[t.GetKind()]; !ok || known != group &&
		!(known == "" && group == "core") {
		c.fail(field+".kind", fmt.Sprintf("%q of the group %q is no target", t.GetKind(), group),
			"write kind: Gateway and group: "+model.GatewayTargetGroup+", or a selector")
	} else if t.GetKind() != model.GatewayTargetKind {
		c.warn(field, "has no effect: only waypoint proxies are selected by a "+t.GetKind(),
			"write a selector instead of targets")
	}
	if t.GetName() == "" {
		c.fail(field+".name", "is missing", "name the target")
	}
	c.longest(field+".name", t.GetName(), longestAccount)
	if t.GetNamespace() != "" {
		c.fail(field+".namespace", "a target is in the object's own namespace", "remove it")
	}
}

// notEmpty checks that a list contains no empty value.
func (c *checker) notEmpty(field string, values []string) bool {
	if at := slices.Index(values, ""); at >= 0 {
		c.fail(fmt.Sprintf("%s[%d]", field, at), "is empty", "write a value or remove it")
		return false
	}
	return true
}
