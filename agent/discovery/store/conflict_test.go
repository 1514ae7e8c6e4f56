package store

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// policyX returns a policy "x" with further metadata and a spec.
func policyX(kind, metadata, spec string) string {
	return "apiVersion: security.istio.io/v1\nkind: " + kind + "\nmetadata: {name: x" + metadata +
		"}\nspec: {" + spec + "}\n"
}

const (
	appA = "selector: {matchLabels: {app: a}}, "
	appB = "selector: {matchLabels: {app: b}}, "
)

// TestConflicts_OfPolicies reads policies with the same name from several files. Each policy except
// the first one is replaced by a denial of what it selects, unless it equals the first one.
func TestConflicts_OfPolicies(t *testing.T) {
	authorization := func(spec string) string { return policyX("AuthorizationPolicy", "", spec) }
	allow := authorization(appA + "rules: [{from: [{source: {namespaces: [a]}}]}]")
	deny := authorization(appA + "action: DENY, rules: [{to: [{operation: {paths: [/a]}}]}]")
	for name, test := range map[string]struct {
		texts []string
		want  []string
	}{
		"a copy":                    {[]string{allow, allow}, nil},
		"a copy in another style":   {[]string{deny, strings.ReplaceAll(deny, "[/a]", "[\"/a\"]")}, nil},
		"a copy with other labels":  {[]string{deny, strings.Replace(deny, "{name: x", "{name: x, labels: {a: b}", 1)}, nil},
		"ALLOW and ALLOW":           {[]string{allow, strings.Replace(allow, "[a]", "[b]", 1)}, []string{"ns app=a at 1"}},
		"ALLOW and DENY":            {[]string{allow, deny}, []string{"ns app=a at 1"}},
		"DENY and ALLOW":            {[]string{deny, allow}, []string{"ns app=a at 1"}},
		"DENY and DENY":             {[]string{deny, strings.Replace(deny, "/a", "/b", 1)}, []string{"ns app=a at 1"}},
		"other workloads":           {[]string{deny, strings.Replace(deny, "app: a", "app: b", 1)}, []string{"ns app=b at 1"}},
		"all workloads":             {[]string{deny, strings.Replace(deny, appA, "", 1)}, []string{"ns at 1"}},
		"other workloads first":     {[]string{strings.Replace(deny, appA, "", 1), deny}, []string{"ns app=a at 1"}},
		"dry run second":            {[]string{deny, policyX("AuthorizationPolicy", ", annotations: {istio.io/dry-run: 'true'}", "")}, nil},
		"dry run first":             {[]string{strings.Replace(deny, "{name: x", "{name: x, annotations: {istio.io/dry-run: 'true'}", 1), deny}, []string{"ns app=a at 1"}},
		"no rules":                  {[]string{deny, authorization("")}, []string{"ns at 1"}},
		"another kind":              {[]string{deny, policyX("PeerAuthentication", "", "mtls: {mode: STRICT}")}, nil},
		"modes":                     {[]string{policyX("PeerAuthentication", "", appA+"mtls: {mode: PERMISSIVE}"), policyX("PeerAuthentication", "", appB+"mtls: {mode: STRICT}")}, []string{"ns app=b at 1"}},
		"issuers":                   {[]string{policyX("RequestAuthentication", "", "jwtRules: [{issuer: a}]"), policyX("RequestAuthentication", "", "jwtRules: [{issuer: b}]")}, []string{"ns at 1"}},
		"of another namespace":      {[]string{deny, strings.Replace(allow, "{name: x", "{name: x, namespace: shop", 1)}, nil},
		"the namespace is given":    {[]string{deny, strings.Replace(allow, "{name: x", "{name: x, namespace: ns", 1)}, []string{"ns app=a at 1"}},
		"three, one like the first": {[]string{deny, allow, deny}, []string{"ns app=a at 1"}},
		"three":                     {[]string{deny, allow, strings.Replace(allow, "[a]", "[b]", 1)}, []string{"ns app=a at 1", "ns app=a at 1"}},
		"in one file":               {[]string{deny + "---\n" + allow}, []string{"ns app=a at 6"}},
		"not a policy":              {[]string{entry("a", "a.test"), entry("a", "b.test")}, nil},
	} {
		f := newFiles(t)
		for i, text := range test.texts {
			f.write(string(rune('a'+i))+".yaml", text)
		}
		for _, when := range []string{"first start", "the next agent"} {
			f.expectDenials(name+", "+when, test.want...)
			errors := 0
			for _, p := range f.store.Problems() {
				if p.Severity == condition.Error {
					errors++
					if !strings.Contains(p.String(), f.path("a.yaml")+":1") {
						t.Errorf("%s, %s: %s does not name both files", name, when, p)
					}
				}
			}
			if errors != len(test.want) {
				t.Errorf("%s, %s: problems %v", name, when, f.problems())
			}
			f.again()
		}
	}
}

// follow applies changes to a map of objects by key, and compares it with the store's objects.
func (f *files) follow(what string, objects map[object.Key]*object.Object, changes []object.Change) {
	f.t.Helper()
	for _, c := range changes {
		if c.Old != nil {
			if objects[c.Old.Key] != c.Old {
				f.t.Errorf("%s: the object before is not the one in force: %v", what, c.Old)
			}
			delete(objects, c.Old.Key)
		}
		if c.New != nil {
			objects[c.New.Key] = c.New
		}
	}
	var got, want []string
	for _, o := range slices.SortedFunc(maps.Values(objects), object.CompareAge) {
		got = append(got, o.String())
	}
	for _, o := range f.store.Objects("ns") {
		want = append(want, o.String())
		if objects[o.Key] != o {
			f.t.Errorf("%s: %s is not the object of the changes", what, o)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("%s: objects and changes differ (-objects +changes):\n%s", what, diff)
	}
}

// TestConflicts_WhileAFileIsReplaced copies a file with a policy, edits the copy and removes the
// original. As long as the original and the edited copy exist, the copy's policy is replaced by a
// denial.
func TestConflicts_WhileAFileIsReplaced(t *testing.T) {
	deny := policyX("AuthorizationPolicy", "", appA+"action: DENY, rules: [{}]")
	f, objects := newFiles(t), map[object.Key]*object.Object{}
	for _, step := range []struct {
		what, file, text string
		denials, rest    int
	}{
		{"a policy", "policy.yaml", deny, 0, 1},
		{"is copied", "new.yaml", deny, 0, 1},
		{"the copy is edited", "new.yaml", strings.Replace(deny, "app: a", "app: b", 1), 1, 1},
		{"and moves in its file", "new.yaml", "\n\n" + strings.Replace(deny, "app: a", "app: b", 1), 1, 1},
		{"and is broken", "new.yaml", "a: [", 1, 1},
		{"and is edited", "new.yaml", strings.Replace(deny, appA, "", 1), 1, 1},
		{"a third", "a.yaml", deny, 1, 1},
		{"goes", "a.yaml", "", 1, 1},
		{"the file is removed", "policy.yaml", "", 0, 1},
	} {
		if step.text == "" {
			f.remove(step.file)
		} else {
			f.write(step.file, step.text)
		}
		f.follow(step.what, objects, f.store.Load())
		if n := len(f.denials()); n != step.denials || len(f.store.Objects("ns")) != n+step.rest {
			t.Errorf("%s: denials %q of %d objects", step.what, f.denials(), len(f.store.Objects("ns")))
		}
	}
	f.expectProblems()
}

func TestConflicts_OfNamespaces(t *testing.T) {
	f, objects := newFiles(t), map[object.Key]*object.Object{}
	f.write("a.yaml", policyX("AuthorizationPolicy", "", "action: DENY, rules: [{}]"))
	f.write("b.yaml", policyX("AuthorizationPolicy", ", namespace: shop", ""))
	f.follow("other namespaces", objects, f.store.Load())
	if n := len(f.store.Objects("shop")); n != 2 {
		t.Errorf("in the same namespace: %d objects, want a policy and a denial", n)
	}
	f.store.SetDefaultNamespace("shop")
	if n := len(f.store.Objects("shop")); n != 2 || len(f.store.Problems()) != 1 {
		t.Errorf("after the change: %d objects, problems %v", n, f.problems())
	}
}

func TestConflicts_OfSources(t *testing.T) {
	i, objects := newInputs(t), map[object.Key]*object.Object{}
	deny := policyX("AuthorizationPolicy", ", creationTimestamp: 2026-01-01T00:00:00Z", appA+
		"action: DENY, rules: [{}]")
	i.write("a.yaml", policyX("AuthorizationPolicy", "", appA+"action: DENY, rules: [{}]"))
	i.follow("files", objects, i.store.Load())
	i.follow("the same", objects, i.take("kubernetes", true, "kubernetes:x", deny))
	i.expectDenials("the same")
	i.follow("another", objects, i.take("memory", true, "memory:x",
		strings.Replace(deny, "app: a", "app: b", 1)))
	i.expectDenials("another", "ns app=b at 0")
	i.expectProblems("a.yaml:1: AuthorizationPolicy ns/x: has no effect: it is given at "+
		"kubernetes:x too, and source kubernetes precedes files; remove or rename one",
		"memory:x: AuthorizationPolicy ns/x: every request to the workloads that it selects is denied, "+
			"because another version of it is at kubernetes:x, and source kubernetes precedes memory; "+
			"remove or rename one")
	i.follow("it goes", objects, i.take("memory", true))
	i.expectDenials("it goes")
}
