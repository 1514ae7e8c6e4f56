package model_test

import (
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"
	types "istio.io/api/type/v1beta1"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

func TestWorld_SecurityPolicies(t *testing.T) {
	w := model.NewMesh("cluster.local", mesh.Default())
	line := 0
	policy := func(namespace, name string, selector map[string]string,
		targets ...*types.PolicyTargetReference) *object.Object {
		line++
		spec := &security.AuthorizationPolicy{TargetRefs: targets}
		if selector != nil {
			spec.Selector = &types.WorkloadSelector{MatchLabels: selector}
		}
		return &object.Object{Key: object.Key{Kind: object.AuthorizationPolicy,
			Namespace: namespace, Name: name}, Line: line, Spec: spec}
	}
	gateway := func(namespace, name string) *types.PolicyTargetReference {
		return &types.PolicyTargetReference{Group: model.GatewayTargetGroup,
			Kind: model.GatewayTargetKind, Namespace: namespace, Name: name}
	}
	one := policy("shop", "one", map[string]string{"app": "a", "version": "1"})
	requests := &object.Object{Key: object.Key{Kind: object.RequestAuthentication,
		Namespace: "shop", Name: "requests"}, Spec: &security.RequestAuthentication{}}
	old := policy("shop", "old", nil)
	old.Spec = &security.AuthorizationPolicy{TargetRef: gateway("", "edge")}
	var changes []object.Change
	for _, o := range []*object.Object{
		policy("", "any", nil), policy("shop", "all", nil), one, policy("shop", "empty", map[string]string{}),
		policy("shop", "other", map[string]string{"app": "b"}),
		policy("far", "far", nil),
		policy("istio-system", "root", nil),
		policy("istio-system", "root-a", map[string]string{"app": "a"}),
		policy("istio-system", "root-edge", nil, gateway("", "edge")),
		policy("shop", "edge", nil, gateway("", "edge"), gateway("shop", "edge")),
		policy("shop", "elsewhere", nil, gateway("far", "edge"), gateway("", "inner")),
		policy("shop", "service", nil, &types.PolicyTargetReference{
			Group: "networking.istio.io", Kind: "ServiceEntry", Name: "edge"}),
		requests, old,
	} {
		changes = append(changes, object.Change{New: o})
	}
	w.Apply(changes)
	for _, test := range []struct {
		kind            object.Kind
		namespace, want string
		labels          map[string]string
	}{
		{object.AuthorizationPolicy, "shop", "any root root-a one all empty",
			map[string]string{"app": "a", "version": "1"}},
		{object.AuthorizationPolicy, "shop", "any root root-a all empty",
			map[string]string{"app": "a"}},
		{object.AuthorizationPolicy, "shop", "any root all empty", nil},
		{object.AuthorizationPolicy, "shop", "any root old all empty edge",
			map[string]string{model.GatewayNameLabel: "edge"}},
		{object.AuthorizationPolicy, "far", "any root far",
			map[string]string{model.GatewayNameLabel: "edge"}},
		{object.AuthorizationPolicy, "istio-system", "any root root-edge",
			map[string]string{model.GatewayNameLabel: "edge"}},
		{object.RequestAuthentication, "shop", "requests", nil},
		{object.RequestAuthentication, "far", "", nil},
	} {
		node := model.Node{Namespace: test.namespace, Labels: test.labels}
		var names []string
		for _, o := range w.SecurityPolicies(test.kind, node) {
			names = append(names, o.Name)
			if !w.AffectsSecurity(model.ChangeSummary{ChangedPolicies: []*object.Object{o}}, node) {
				t.Errorf("a change of %s is not one for %+v", o.Name, node)
			}
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%s of %+v: %s, want %s", test.kind, node, got, test.want)
		}
	}
	selected := model.Node{Namespace: "shop", Labels: map[string]string{"app": "a", "version": "1"}}
	moved := *one
	moved.Spec = &security.AuthorizationPolicy{Selector: &types.WorkloadSelector{
		MatchLabels: map[string]string{"app": "b"}}}
	touched := w.Apply([]object.Change{{Old: one, New: &moved}})
	for node, affected := range map[*model.Node]bool{&selected: true,
		{Namespace: "shop", Labels: map[string]string{"app": "b"}}: true,
		{Namespace: "shop", Labels: map[string]string{"app": "c"}}: false} {
		if w.AffectsSecurity(touched, *node) != affected {
			t.Errorf("affected: %v, want %v: %+v", !affected, affected, node)
		}
	}
	for _, c := range changes {
		if c.New == one {
			c.New = &moved
		}
		w.Apply([]object.Change{{Old: c.New}})
	}
	if left := w.SecurityPolicies(object.AuthorizationPolicy, selected); len(left) > 0 {
		t.Errorf("removed objects are left: %v", left)
	}
}
