package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery/object"
)

const (
	deniesA = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata:\n  name: x\n" +
		"spec:\n  selector:\n    matchLabels:\n      app: a\n  action: DENY\n  rules:\n  - from:\n" +
		"    - source:\n        principals: [\"*\"]\n"
	tokens = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata:\n  name: tokens\n" +
		"spec:\n  jwtRules:\n  - issuer: issuer.test\n    jwksUri: https://issuer.test/keys\n"
	strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n" +
		"  name: mtls\nspec:\n  mtls:\n    mode: STRICT\n"
)

// hasPolicy reports whether a policy is in force.
func (f *files) hasPolicy(name string) bool {
	return slices.ContainsFunc(f.store.Objects("ns"), func(o *object.Object) bool {
		return o.Kind.CanRestrictAccess() && o.Name == name
	})
}

// TestBrokenEdits_OfPolicies breaks a file with two policies in all the ways in which people and
// editors do. Afterwards each policy is in force, or all requests that it may restrict are denied.
// A store that has read only the broken text also denies such requests.
func TestBrokenEdits_OfPolicies(t *testing.T) {
	// Name of an edit after which the text does not look like a policy. An agent without last good
	// versions cannot notice that it was one.
	const unnoticed = "other kind and API"
	const more = "  - to:\n    - operation:\n        ports: [\"1\"]\n"
	good := entry("a", "a.test") + "---\n" + deniesA + more + "---\n" + tokens
	replaced := func(old, text string) string {
		broken := strings.Replace(good, old, text, 1)
		if broken == good {
			t.Fatalf("nothing is %q", old)
		}
		return broken
	}
	json := `{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy",` +
		`"metadata":{"name":"x"},"spec":{}}`
	for name, text := range map[string]string{
		"indentation of the spec":      replaced("spec:\n  selector", " spec:\n  selector"),
		"indentation of the selector":  replaced("  selector:", "   selector:"),
		"selector without indentation": replaced("  selector:", "selector:"),
		"action without indentation":   replaced("  action", "action"),
		"rules without indentation":    replaced("  rules", "rules"),
		"indentation of the source":    replaced("        principals", "    principals"),
		"indentation of the name":      replaced("  name: x", "name: x"),
		"indentation of kind":          replaced("kind: Auth", "  kind: Auth"),
		"tab":                          replaced("  action", "\taction"),
		"tab in metadata":              replaced("  name: x", "\tname: x"),
		"tab before kind":              replaced("kind: Auth", "\tkind: Auth"),
		"CRLF and no YAML":             strings.ReplaceAll(replaced("  rules", " rules: ["), "\n", "\r\n"),
		"CR and no YAML":               strings.ReplaceAll(replaced("  rules", " rules: ["), "\n", "\r"),
		"BOM inside":                   replaced("kind: Auth", "\ufeffkind: Auth"),
		"UTF-16 without BOM":           unmarkedUTF16(good),
		"quote not closed":             replaced("name: x", "name: \"x"),
		"quote not closed in another":  replaced("name: a", "name: \"a"),
		"list not closed":              replaced(`["*"]`, `["*"`),
		"conflict markers":             replaced("  action", "<<<<<<< HEAD\n  action"),
		"conflict markers around": replaced(
			"apiVersion: security", "<<<<<<< HEAD\napiVersion: security"),
		"unknown anchor": replaced("name: x", "name: *x"),
		"anchor for kind": replaced(
			"kind: Auth", "x: &k AuthorizationPolicy\nkind: *k\nkin: Auth"),
		"kind twice": replaced("kind: Auth", "kind: ServiceEntry\nkind: Auth"),
		"kind twice, the policy first": replaced(
			"metadata:\n  name: x", "kind: ServiceEntry\nmetadata:\n  name: x"),
		"other kind": replaced("kind: Auth", "kind: ServiceEntry #"),
		"other kind and API": replaced(
			"security.istio.io/v1\nkind: Auth", "networking.istio.io/v1\nkind: Sidecar #"),
		"kind is missing": replaced("kind: AuthorizationPolicy\n", ""),
		"kind is empty":   replaced("AuthorizationPolicy", ""),
		"kind is a list": replaced(
			"kind: AuthorizationPolicy", "kind: [AuthorizationPolicy]"),
		"API is missing":          replaced("apiVersion: security.istio.io/v1\n", ""),
		"API in the line of kind": replaced("/v1\nkind: Auth", "/v1 kind: Auth"),
		"metadata twice": replaced(
			"metadata:\n  name: x", "metadata:\n  name: x\nmetadata:\n  name: z"),
		"name twice":         replaced("  name: x", "  name: x\n  name: z"),
		"name is missing":    replaced("  name: x", "  labels: {}"),
		"name is a number":   replaced("  name: x", "  name: 5"),
		"renamed and broken": replaced("name: x\nspec", "name: z\nspec: ["),
		"--- is missing":     replaced("---\napiVersion: security", "apiVersion: security"),
		"--- without line break": replaced(
			"---\napiVersion: security", "---apiVersion: security"),
		"--- with comment, --- missing": replaced("---\n"+tokens, "--- # a comment\n"+tokens+tokens),
		"--- in the spec":               replaced("  rules", "---\n  rules"),
		"--- before the spec":           replaced("spec:\n  selector", "---\nspec:\n  selector"),
		"--- between rules":             replaced("  - to", "---\n  - to"),
		"--- and comment between rules": replaced("  - to", "---\n# more\n---\n  - to"),
		"--- in a rule":                 replaced("        ports", "---\n        ports"),
		"--- between issuers":           replaced("    jwksUri", "---\n    jwksUri"),
		"end of document":               replaced("spec:\n  selector", "...\nspec:\n  selector"),
		"second broken document":        good + "---\nkind: AuthorizationPolicy\na: [",
		"comment that does not begin":   replaced("spec:\n  selector", "see above\nspec:\n  selector"),
		"template":                      replaced("name: x", "name: {{ .Name }}"),
		"list without items":            "apiVersion: v1\nkind: List\nitem:\n- " + json + "\n",
		"list with a broken item": "apiVersion: v1\nkind: List\nitems:\n- " +
			json + "\n- AuthorizationPolicy\n",
		"list, items twice": "apiVersion: v1\nkind: List\nitems:\n- " +
			json + "\nitems: []\n",
		"list with a misspelt kind": "apiVersion: v1\nkind: Lists\nitems:\n- " +
			json[:len(json)-1] + ",\"a\":1}\n",
		"policy with items": "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nitems: [" +
			json + "]\n",
		"JSON without comma":            strings.Replace(json, `,"kind"`, `"kind"`, 1),
		"JSON cut off":                  json[:len(json)-1],
		"JSON twice in a line, one bad": json + " " + json[:len(json)-2],
		"too deep": replaced(
			"  action", "  deep: "+strings.Repeat("[", 200)+strings.Repeat("]", 200)+"\n  action"),
	} {
		f := newFiles(t)
		f.write("x.yaml", good)
		f.store.Load()
		f.expectProblems()
		before := f.store.Objects("ns")
		f.write("x.yaml", text)
		f.store.Load()
		for _, when := range []string{"running", "the next agent", "the one after"} {
			for _, policy := range before {
				if policy.Kind.CanRestrictAccess() && len(f.denials()) == 0 &&
					!slices.ContainsFunc(f.store.Objects("ns"), func(o *object.Object) bool {
						return object.Equal(o, policy)
					}) {
					t.Errorf("%s, %s: %s is not as before\n%q", name, when, policy, f.problems())
				}
			}
			f.again()
			f.store.Load()
		}
		f = newFiles(t)
		f.write("x.yaml", text)
		f.store.Load()
		if closed := f.hasPolicy("x") || len(f.denials()) > 0; !closed && name != unnoticed {
			t.Errorf("%s: the first agent denies nothing\n%q", name, f.problems())
		}
	}
}

// TestBrokenEdits_OfSeparators adds a line "---" or "..." to a file at each place, or moves the
// next "---" there. Each policy is unchanged, or a denial is in force.
func TestBrokenEdits_OfSeparators(t *testing.T) {
	const target = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata:\n" +
		"  name: edge\nspec:\n  rules:\n  - {}\n  targetRefs:\n  - kind: %s\n    group: %q\n" +
		"    name: edge\n"
	more := "  - to:\n    - operation:\n        ports: [\"1\"]\n"
	comment := "# apiVersion: v1\n# kind: ConfigMap\n"
	list := "apiVersion: v1\nkind: List\nitems:\n- apiVersion: networking.istio.io/v1alpha3\n" +
		"  kind: EnvoyFilter\n  metadata: {name: e}\n  spec: {}\n- " +
		strings.TrimSuffix(strings.ReplaceAll(deniesA+more, "\n", "\n  "), "  ")
	for name, good := range map[string]string{
		"before another object": deniesA + more + "---\n" + entry("a", "a.test") + "---\n" + tokens +
			"---\n" + strict + "---\n" + entry("b", "b.test"),
		"before a comment": deniesA + more + comment,
		"of a gateway":     fmt.Sprintf(target, "Gateway", "gateway.networking.k8s.io"),
		"kind last": strings.Replace(strings.Replace(fmt.Sprintf(target, "Gateway",
			"gateway.networking.k8s.io"), "- kind: Gateway\n    group", "- group", 1), "    name: edge",
			"    name: edge\n    kind: Gateway", 1),
		"of a Service": fmt.Sprintf(target, "Service", ""),
		"list":         list,
	} {
		before := parsed(good, nil)
		if len(before.problems) > 0 && name != "of a Service" {
			t.Fatalf("%s: %v", name, before.problems)
		}
		lines := strings.SplitAfter(good, "\n")
		for i := range lines {
			start, rest := strings.Join(lines[:i], "")+"---\n", strings.Join(lines[i:], "")
			for _, text := range []string{start + rest, start + strings.Replace(rest, "---\n", "", 1),
				strings.Join(lines[:i], "") + "...\n" + rest} {
				expectNotWeaker(t, before, text)
			}
		}
	}
}

// expectNotWeaker replaces the content of a file by a text, and expects that each policy is
// unchanged, or that a denial is in force. It expects the same of the next store, and of a store
// without last good versions.
func expectNotWeaker(t *testing.T, before *file, text string) {
	t.Helper()
	after := parsed(text, before)
	for _, now := range []*file{after, parsed(text, &file{objects: after.objects}),
		parsed(text, nil)} {
		if slices.ContainsFunc(now.objects, isDenial) {
			continue
		}
		for _, o := range before.objects {
			if o.Kind.CanRestrictAccess() && !slices.ContainsFunc(now.objects,
				func(x *object.Object) bool {
					return object.Equal(x, o)
				}) {
				t.Errorf("%s is not as before: %v\n%s", o, now.problems, text)
			}
		}
	}
}

func parsed(text string, previous *file) *file {
	next := &file{}
	next.parse("x.yaml", inUTF8([]byte(text)), previous, Options{Namespace: "ns",
		Validate: validateObject})
	Options{}.validateAll([]*file{next})
	next.collect("x.yaml", previous, false)
	return next
}

func unmarkedUTF16(text string) string {
	var out strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&out, "%c\x00", c)
	}
	return out.String()
}
