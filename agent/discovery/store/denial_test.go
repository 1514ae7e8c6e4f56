package store

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// denials formats the denials in force as "namespace selector at line".
func (f *files) denials() (all []string) {
	for _, o := range f.store.Objects("ns") {
		if isSubdomain(o.Name) {
			continue
		}
		spec := o.Spec.(*security.AuthorizationPolicy)
		scope := ""
		for _, target := range spec.TargetRefs {
			scope += " for " + target.Name
		}
		for name, value := range spec.GetSelector().GetMatchLabels() {
			scope += " " + name + "=" + value
		}
		all = append(all, fmt.Sprintf("%s%s at %d", cmp.Or(o.Namespace, "all"), scope, o.Line))
	}
	return all
}

func (f *files) expectDenials(what string, want ...string) {
	f.t.Helper()
	f.store.Load()
	if got := f.denials(); !slices.Equal(got, want) {
		f.t.Errorf("%s: denials %q, want %q", what, got, want)
	}
}

func TestDenials_OfWhatRestricts(t *testing.T) {
	policy := func(kind, spec string) string {
		return "apiVersion: security.istio.io/v1\nkind: " + kind + "\nmetadata: {name: x}\n" + spec
	}
	plugin := func(kind, spec string) string {
		return "apiVersion: extensions.istio.io/v1alpha1\nkind: " + kind +
			"\nmetadata: {name: x}\nspec: " + spec
	}
	for text, restricts := range map[string]bool{
		policy("AuthorizationPolicy", "spec: []"): true,
		policy("AuthorizationPolicy",
			"spec: {action: DENIED}"): true, // the action is unknown
		policy("PeerAuthentication",
			"spec: {mtls: STRICT}"): true, // mtls is invalid
		policy("PeerAuthentication",
			// invalid, because it has no selector
			"spec: {portLevelMtls: {80: {mode: STRICT}}}"): true,
		strings.Replace(policy("PeerAuthentication",
			"spec: {mtls: {mode: STRICT}}"), "{name: x}", "{}", 1): true, // the object has no name
		policy("RequestAuthentication",
			"spec: {jwtRules: [{}]}"): true,
		policy("RequestAuthentication",
			"spec: {}"): false,
		policy("AuthorisationPolicy",
			"spec: {rules: [{}]}"): true, // the kind is misspelt
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: x}, spec: []}": true,
		"apiVersion: v1\nkind: AuthorizationPolicy\nmetadata: {name: x}\n":                                                                   true,
		"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: 5}\n":                                                 true,
		plugin("WasmPlugin",
			"{url: file:///a, phase: AUTHZ, urls: file:///a}"): true,
		plugin("WasmPlugin",
			"{phase: AUTHN}"): true,
		plugin("WasmPlugin",
			"{url: file:///a, phase: AUTHZ, verificationKey: a}"): false,
		plugin("WasmPlugin",
			"{url: file:///a, verificationKey: a}"): false,
		plugin("TrafficExtension",
			"{phase: AUTHN}"): true,
		plugin("TrafficExtension",
			"{wasm: {url: file:///a}, lua: {inlineCode: a}}"): true,
		"apiVersion: security.istio.com/v1\nkind: AuthorizationPolicy\nmetadata: {name: x}": true,
		"apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: x}\nspec: {}": false,
	} {
		f := newFiles(t)
		f.write("x.yaml", text+"\n")
		f.store.Load()
		if got := len(f.denials()) > 0; got != restricts {
			t.Errorf("denies: %v, want %v\n%s", got, restricts, text)
		}
		severity := condition.Warning
		if restricts {
			severity = condition.Error
		}
		if problems := f.store.Problems(); len(problems) == 0 ||
			problems[len(problems)-1].Severity != severity {
			t.Errorf("problems %v, want one of severity %s\n%s", problems, severity, text)
		}
	}
}

// TestDenials_OfWhatIsSelected reads policies that are invalid and have no last good version. What
// they select is denied.
func TestDenials_OfWhatIsSelected(t *testing.T) {
	const header = "apiVersion: security.istio.io/v1\nkind: %s\nmetadata: {name: x, namespace: shop}\n"
	policy := func(kind, spec string) string { return fmt.Sprintf(header, kind) + "spec: " + spec + "\n" }
	for _, test := range []struct{ name, text, want string }{
		{"by selector", policy("AuthorizationPolicy",
			"{selector: {matchLabels: {app: a}}, action: DENIED}"), "shop app=a at 1"},
		{"another kind", policy("PeerAuthentication",
			"{selector: {matchLabels: {app: a}}, mtls: STRICT}"), "shop app=a at 1"},
		{"by target", policy("AuthorizationPolicy", "{action: DENIED, targetRefs: [{kind: Gateway, "+
			"group: gateway.networking.k8s.io, name: edge}]}"), "shop for edge at 1"},
		{"misspelt kind", policy("AuthorisationPolicy",
			"{selector: {matchLabels: {app: a}}}"), "shop app=a at 1"},
		{"unknown version", strings.Replace(policy("AuthorizationPolicy",
			"{selector: {matchLabels: {app: a}}}"), "/v1", "/v9", 1), "shop app=a at 1"},
		{"unknown key in metadata", strings.Replace(policy("AuthorizationPolicy",
			"{selector: {matchLabels: {app: a}}}"), "name: x", "name: x, nam: y", 1),
			"shop app=a at 1"},
		{"without a name", strings.Replace(policy("AuthorizationPolicy",
			"{selector: {matchLabels: {app: a}}}"), "name: x, ", "", 1), "shop app=a at 1"},
		{"without code", "apiVersion: extensions.istio.io/v1alpha1\nkind: TrafficExtension\nmetadata: " +
			"{name: x}\nspec: {phase: AUTHZ, selector: {matchLabels: {app: a}}}\n", "ns app=a at 1"},
		{"without a module", "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: " +
			"{name: x}\nspec: {phase: AUTHZ, selector: {matchLabels: {app: a}}}\n", "ns app=a at 1"},
		{"without code, restricts nothing", "apiVersion: extensions.istio.io/v1alpha1\n" +
			"kind: TrafficExtension\nmetadata: {name: x}\nspec: {phase: STATS}\n", ""},
		{"without a module, restricts nothing", "apiVersion: extensions.istio.io/v1alpha1\n" +
			"kind: WasmPlugin\nmetadata: {name: x}\nspec: {phase: STATS}\n", ""},
		{"no selector", policy("AuthorizationPolicy", "{action: DENIED}"), "shop at 1"},
		{"invalid selector", policy("AuthorizationPolicy",
			"{selector: {matchlabels: {app: a}}, action: DENY}"), "shop at 1"},
		{"selector given twice", policy("AuthorizationPolicy", "{selector: {matchLabels: {app: a}}, "+
			"selector: {matchLabels: {app: b}}}"), "shop at 1"},
		{"invalid label", policy("AuthorizationPolicy",
			"{selector: {matchLabels: {app: \"a b\"}}}"), "shop at 1"},
		{"invalid spec", policy("AuthorizationPolicy", "[]"), "shop at 1"},
		{"invalid namespace", strings.Replace(policy("AuthorizationPolicy",
			"{selector: {matchLabels: {app: a}}}"), "shop", "SHOP", 1), "all at 1"},
		{"namespace given twice", strings.Replace(policy("AuthorizationPolicy", "{}"),
			"namespace: shop", "namespace: shop, namespace: bank", 1), "all at 1"},
		{"no YAML", policy("AuthorizationPolicy", "{"), "all at 1"},
		{"dry run", strings.Replace(policy("AuthorizationPolicy", "{action: DENIED}"), "name: x",
			"name: x, annotations: {istio.io/dry-run: \"true\"}", 1), ""},
		{"of another project", strings.Replace(policy("AuthorizationPolicy",
			"{targetRef: {group: policy.linkerd.io, kind: Server, name: a}}"), "security.istio.io",
			"policy.linkerd.io", 1), "shop at 1"},
	} {
		f := newFiles(t)
		f.write("x.yaml", entry("a", "a.test")+"---\n")
		f.write("y.yaml", test.text)
		var want []string
		if test.want != "" {
			want = []string{test.want}
		}
		f.expectDenials(test.name, want...)
		named := slices.ContainsFunc(f.store.Problems(), func(p object.Problem) bool {
			return strings.Contains(p.String(), "y.yaml:") && strings.Contains(p.Message,
				"every request to")
		})
		if named != (test.want != "") {
			t.Errorf("%s: problems %v", test.name, f.store.Problems())
		}
	}
}

// TestDenials_OfFiles loads files without last good versions. If an unreadable text may contain a
// policy, everything is denied, or the namespace if that is readable.
func TestDenials_OfFiles(t *testing.T) {
	const strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n" +
		"metadata: {name: x}\nspec: {mtls: {mode: STRICT}}\n"
	for text, want := range map[string]string{
		strict:                            "",
		strict + "a: [":                   "all at 1",
		"\"kind\": \"AuthorizationPolicy": "all at 1",
		"apiVersion: extensions.istio.io/v1alpha1\nspec: {": "all at 1",
		// the document is not a mapping
		"- {apiVersion: security.istio.io/v1, kind: PeerAuth}":         "all at 1",
		strings.Replace(strict, "kind", "knd", 1):                      "ns at 1",
		"apiVersion: v1\nkind: List\nitems: {a: {kind: WasmPlugin}}\n": "all at 1",
		// the line "---" is missing
		entry("a", "a.test") + strict:                                                   "all at 1",
		entry("a", "a.test") + "b: [":                                                   "",
		strict + "---\n" + entry("a", "a.test") + "b: [":                                "",
		strings.Replace(entry("a", "a.test"), "name: a", "nam: AuthorizationPolicy", 1): "",
	} {
		f := newFiles(t)
		f.write("x.yaml", text)
		f.store.Load()
		if got := strings.Join(f.denials(), ", "); got != want {
			t.Errorf("denials %q, want %q\n%s", got, want, text)
		}
	}
}

// TestDenials_NotWithLastGood edits valid policies, and starts the next store after each edit. The
// version before the edit stays in force, unless there is none.
func TestDenials_NotWithLastGood(t *testing.T) {
	const good = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n" +
		"metadata: {name: x}\nspec: {action: DENY, rules: [{}]}\n"
	wrong := strings.Replace(good, "DENY", "DENIED", 1)
	second := strings.Replace(wrong, "name: x", "name: y", 1)
	const list = "apiVersion: v1\nkind: Lits\nitems:\n- {apiVersion: security.istio.io/v1, " +
		"kind: AuthorizationPolicy, metadata: {name: x}, spec: {}}\n"
	for name, test := range map[string]struct {
		before, after string
		last          bool // the policy in its version before the edit is in force
		want          []string
	}{
		"invalid":       {good, wrong, true, nil},
		"misspelt kind": {good, strings.Replace(good, "kind: Auth", "kind: Aut", 1), true, nil},
		"another API":   {good, strings.Replace(good, "/v1", "/v9", 1), true, nil},
		"another group": {good, strings.Replace(good, "security", "authorization", 1), true, nil},
		"misspelt kind and group": {good, strings.NewReplacer("security", "securty", "Policy",
			"Polcy").Replace(good), true, nil},
		"misspelt List":       {strings.Replace(list, "Lits", "List", 1), list, true, nil},
		"without a name":      {good, strings.Replace(good, "name: x", "", 1), true, nil},
		"bad namespace":       {good, strings.Replace(good, "name: x", "name: x, namespace: X", 1), true, nil},
		"no YAML":             {good, good + "a: [", true, nil},
		"--- is missing":      {good + "---\n" + entry("a", "a.test"), good + entry("a", "a.test"), true, nil},
		"--- before the spec": {good, strings.Replace(good, "spec:", "---\nspec:", 1), true, nil},
		"--- before the spec, never valid": {"", strings.Replace(good, "spec:", "---\nspec:", 1), false,
			[]string{"ns at 1"}},
		"a second": {good, good + "---\n" + second, true, []string{"ns at 6"}},
		"of another kind": {good, strings.Replace(wrong, "AuthorizationPolicy", "PeerAuthentication", 1),
			true, []string{"ns at 1"}},
		"removed":              {good, "# none\n", false, nil},
		"never valid":          {wrong, strings.Replace(wrong, "DENIED", "NO", 1), false, []string{"ns at 1"}},
		"never valid, no YAML": {wrong, wrong + "a: [", false, []string{"all at 1"}},
		"corrected":            {wrong, good, true, nil},
		"a broken one beside it": {good, good + "---\nkind: AuthorizationPolicy\na: [", true,
			[]string{"all at 1"}},
		"a broken one beside": {entry("a", "a.test"), "kind: AuthorizationPolicy\na: [", false,
			[]string{"all at 1"}},
		"in an empty file": {"", "kind: AuthorizationPolicy\na: [", false, []string{"all at 1"}},
	} {
		f := newFiles(t)
		f.write("x.yaml", test.before)
		f.store.Load()
		f.write("x.yaml", test.after)
		for _, when := range []string{"running", "the next agent", "the one after"} {
			f.expectDenials(name+", "+when, test.want...)
			if last := slices.ContainsFunc(f.store.Objects("ns"), func(o *object.Object) bool {
				return o.Name == "x" && o.Kind == object.AuthorizationPolicy
			}); last != test.last {
				t.Errorf("%s, %s: the version before is in force: %v", name, when, last)
			}
			f.again()
		}
	}
}

// TestDenials_OfMovedPolicies moves or breaks a policy in a file in which another object has a last
// good version. Only the policy's own last good version makes a denial unnecessary.
func TestDenials_OfMovedPolicies(t *testing.T) {
	const policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n" +
		"metadata: {name: x}\nspec: {}\n"
	const invalid = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n" +
		"metadata: {name: a}\nspec: []\n"
	nameless := strings.Replace(entry("b", "b.test"), "name: b", "nam: b", 1)
	for name, steps := range map[string][]struct {
		a, b string
		want []string
	}{
		"into a file, without ---": {
			{policy, entry("a", "a.test"), nil},
			{"# none\n", entry("a", "a.test") + policy, []string{"all at 1"}}},
		"broken beside what is invalid": {
			{"", entry("a", "a.test") + "---\n" + policy, nil},
			{"", invalid + "---\n" + policy, nil},
			{"", invalid + "---\n" + policy + "a: [", nil}},
		"corrected beside what has no name": {
			{"", policy + "a: [", []string{"all at 1"}},
			{"", policy + "---\n" + nameless, nil}},
	} {
		// restarted: the store is restarted before the last step
		for _, restarted := range []bool{false, true} {
			f := newFiles(t)
			for i, step := range steps {
				what := fmt.Sprintf("%s, step %d, restarted: %v", name, i+1, restarted)
				if restarted && i == len(steps)-1 {
					f.again()
				}
				f.write("a.yaml", step.a)
				f.write("b.yaml", step.b)
				f.expectDenials(what, step.want...)
				if in := slices.ContainsFunc(f.store.Objects("ns"), func(o *object.Object) bool {
					return o.Name == "x"
				}); in != (step.want == nil) {
					t.Errorf("%s: the policy is in force: %v", what, in)
				}
			}
		}
	}
}

// TestDenials_OfDanglingLink removes the target of a link to a policy. The policy stays in force,
// because the file system of the target may only be unmounted. A store that never read the target
// denies everything.
func TestDenials_OfDanglingLink(t *testing.T) {
	const policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n" +
		"metadata: {name: x}\nspec: {}\n"
	f, target := newFiles(t), filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(target, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, f.path("x.yaml")); err != nil {
		t.Fatal(err)
	}
	f.expectDenials("the target exists")
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	f.expectDenials("it is away")
	if err := os.Symlink(f.path("x.yaml"), target); err != nil {
		t.Fatal(err)
	}
	f.expectDenials("it is a link to itself")
	if !slices.ContainsFunc(f.store.Objects("ns"), func(o *object.Object) bool {
		return o.Name == "x"
	}) {
		t.Error("the policy is not in force")
	}
	if len(f.store.Problems()) == 0 {
		t.Error("nothing is reported")
	}
	first := newFiles(t)
	if err := os.Symlink(target, first.path("x.yaml")); err != nil {
		t.Fatal(err)
	}
	first.expectDenials("nothing of it is known", "all at 1")
}

// TestDenials_OfUnreadableFile: a file without read permission denies everything if no store has
// read it before, because it may contain policies.
func TestDenials_OfUnreadableFile(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", entry("a", "a.test"))
	for _, folder := range []string{f.directory, filepath.Dir(f.directory)} {
		if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // of tests
			t.Fatal(err)
		}
	}
	withoutRights(t)
	for _, step := range []struct {
		mode os.FileMode
		want []string
		// at the last step, the store has read the file before
	}{{0, []string{"all at 1"}}, {0o644, nil}, {0, nil}} {
		asRoot(t, func() error { return os.Chmod(f.path("a.yaml"), step.mode) })
		f.expectDenials(fmt.Sprintf("mode %o", step.mode), step.want...)
	}
}
