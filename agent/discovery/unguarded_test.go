package discovery

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"

	security "istio.io/api/security/v1beta1"
)

func TestAdmitsWithoutGuards(t *testing.T) {
	rule := func(path string) *security.Rule {
		return &security.Rule{To: []*security.Rule_To{{Operation: &security.Operation{
			Paths: []string{path}}}}}
	}
	policy := func(action security.AuthorizationPolicy_Action,
		rules ...*security.Rule) *object.Object {
		return &object.Object{Key: object.Key{Kind: object.AuthorizationPolicy, Namespace: "shop",
			Name: action.String()}, Spec: &security.AuthorizationPolicy{Action: action, Rules: rules}}
	}
	listener := func(policies ...*object.Object) *resource.Resource {
		w := model.NewMesh("cluster.local", mesh.Default())
		for _, o := range policies {
			w.Apply([]object.Change{{New: o}})
		}
		a := translate.AuthorizationPolicies(w, model.Node{Namespace: "shop"})
		in := translate.InboundListener{Port: 80, Name: "p", Protocol: model.AutoProtocol,
			Bind:           "127.0.0.1",
			ConnectionPool: &networking.ConnectionPoolSettings{},
			SecurityFilters: translate.SecurityFilters{RBACNetwork: a.RBACNetwork,
				RBACHTTP: slices.Concat(
					translate.RequestAuthentications(w,
						model.Node{Namespace: "shop"}).Filters, a.RBACHTTP)}}
		r, err := in.Listener(w.MeshConfig())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	tokens := func(keys string) *object.Object {
		return &object.Object{Key: object.Key{Kind: object.RequestAuthentication,
			Namespace: "shop", Name: "a"}, Spec: &security.RequestAuthentication{
			JwtRules: []*security.JWTRule{{Issuer: "a", Jwks: keys}}}}
	}
	deny := policy(security.AuthorizationPolicy_DENY, rule("/a"))
	twice := policy(security.AuthorizationPolicy_DENY, rule("/a"), rule("/b"))
	admit := func(paths ...string) *object.Object {
		var rules []*security.Rule
		for _, path := range paths {
			rules = append(rules, rule(path))
		}
		return policy(security.AuthorizationPolicy_ALLOW, rules...)
	}
	dry := policy(security.AuthorizationPolicy_DENY, rule("/c"))
	dry.Name, dry.Annotations = "dry", map[string]string{object.DryRunAnnotation: "true"}
	for name, test := range map[string]struct {
		before, after []*object.Object
		want          bool
	}{
		"the same":   {[]*object.Object{deny}, []*object.Object{deny}, false},
		"none":       {nil, nil, false},
		"one more":   {nil, []*object.Object{deny}, true},
		"tokens":     {nil, []*object.Object{tokens("a")}, true},
		"other keys": {[]*object.Object{tokens("a")}, []*object.Object{tokens("b")}, true},
		"same keys":  {[]*object.Object{tokens("a")}, []*object.Object{tokens("a")}, false},
		"one less":   {[]*object.Object{deny}, nil, false},
		"another rule": {[]*object.Object{deny}, []*object.Object{
			policy(deny.Spec.(*security.AuthorizationPolicy).Action, rule("/b"))}, true},
		"fewer denials": {[]*object.Object{twice}, []*object.Object{deny}, false},
		"more denials":  {[]*object.Object{deny}, []*object.Object{twice}, true},
		"more admitted": {[]*object.Object{admit("/a")}, []*object.Object{admit("/a", "/b")}, false},
		"less admitted": {[]*object.Object{admit("/a", "/b")}, []*object.Object{admit("/b")}, true},
		"a dry run":     {[]*object.Object{deny}, []*object.Object{deny, dry}, false},
		"an audit": {nil, []*object.Object{policy(security.AuthorizationPolicy_AUDIT,
			rule("/a"))}, false},
		"no dry run any more": {[]*object.Object{dry}, []*object.Object{
			policy(security.AuthorizationPolicy_DENY, rule("/c"))}, true},
		"another action": {[]*object.Object{deny},
			[]*object.Object{deny, policy(security.AuthorizationPolicy_ALLOW, rule("/a"))}, true},
	} {
		if got := admitsWithoutGuards(listener(test.before...), listener(test.after...)); got !=
			test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
