package store

import (
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// FuzzBrokenEdit replaces a file with policies by an arbitrary text. While the text has an error,
// all policies stay in force, also in the next store. If the text has no problem, a line "---" is
// added to it: each policy of the text must then be unchanged, or something is denied.
func FuzzBrokenEdit(f *testing.F) {
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
		f.Add(seed, uint8(8))
	}
	before := parsed(good, nil)
	f.Fuzz(func(t *testing.T, text string, at uint8) {
		valid := parsed(text, nil)
		lines := strings.SplitAfter(text, "\n")
		if i := int(at); len(valid.problems) == 0 && i < len(lines) {
			expectNotWeaker(t, valid, strings.Join(lines[:i], "")+"---\n"+strings.Join(lines[i:], ""))
		}
		after := parsed(text, before)
		if !slices.ContainsFunc(after.problems, func(p object.Problem) bool {
			return p.Severity == condition.Error
		}) {
			return
		}
		next := parsed(text, &file{objects: after.objects})
		for _, now := range []*file{after, next} {
			for _, o := range before.objects {
				if o.Kind.CanRestrictAccess() && !slices.ContainsFunc(now.objects,
					func(x *object.Object) bool {
						return x.Key == o.Key
					}) {
					t.Errorf("%s is not in force: %v", o, now.problems)
				}
			}
		}
	})
}
