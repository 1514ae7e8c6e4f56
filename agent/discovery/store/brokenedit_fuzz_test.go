package store

import (
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// FuzzBrokenEdit replaces a file with policies by an arbitrary text. While the text has an error,
// all policies stay in force, also in the next store.
func FuzzBrokenEdit(f *testing.F) {
	const strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata:\n" +
		"  name: mtls\nspec:\n  mtls:\n    mode: STRICT\n"
	good := entry("a", "a.test") + "---\n" + deniesA + "---\n" + tokens + "---\n" + strict
	for _, seed := range []string{good, strings.Replace(good, "action:", "action", 1),
		strings.ReplaceAll(good, "---\n", ""), strings.Replace(good, "spec:", "---\nspec:", 2),
		strings.Replace(good, "security", "securty", 1), strings.Replace(good, "Policy", "", 1),
		strings.ReplaceAll(good, "\n", "\r\n"), strings.ReplaceAll(good, "  ", "\t"),
		unmarkedUTF16(deniesA), "\xff\xfe" + unmarkedUTF16(deniesA), "\ufeff" + deniesA,
		strings.Replace(tokens, "issuer:", "issuer: *a #", 1), deniesA + deniesA, strict + "a: [",
		"kind: List\nitems:\n- " + strings.ReplaceAll(deniesA, "\n", "\n  ") + "\n- 5\n",
		`{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"name":"x"},` +
			`"spec":{"action":"DENY","rules":[{}]}},`,
		"apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: x}\n" +
			"spec: {phase: AUTHZ}\n", "<<: &a {kind: AuthorizationPolicy}\nmetadata: *a\n", "",
	} {
		f.Add(seed)
	}
	options := Options{Namespace: "ns", Validate: validateObject}
	parse := func(text string, previous *file) *file {
		next := &file{}
		next.parse("x.yaml", inUTF8([]byte(text)), previous, options)
		next.collect("x.yaml", previous, false)
		return next
	}
	before := parse(good, nil)
	f.Fuzz(func(t *testing.T, text string) {
		after := parse(text, before)
		if !slices.ContainsFunc(after.problems, func(p object.Problem) bool {
			return p.Severity == condition.Error
		}) {
			return
		}
		next := parse(text, &file{objects: after.objects})
		for _, now := range []*file{after, next} {
			for _, o := range before.objects {
				if o.Kind.Restricts() && !slices.ContainsFunc(now.objects, func(x *object.Object) bool {
					return x.Key == o.Key
				}) {
					t.Errorf("%s is not in force: %v", o, now.problems)
				}
			}
		}
	})
}
