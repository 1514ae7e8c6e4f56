package store

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

// TestDenials_OfUnknownPolicies edits a file with two policies so that it cannot be parsed. If it
// mentions further policies, everything is denied.
func TestDenials_OfUnknownPolicies(t *testing.T) {
	const inLine = "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, " +
		"metadata: {name: x}, spec: {}}"
	good := "# of the team\n" + entry("a", "a.test") + "---\n" + deniesA + "---\n" + tokens
	edited := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(good) }
	all := []string{"all at 1"}
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"typo in another object": {edited("hosts:", "hosts"), nil},
		"typo and its policies moved": {
			strings.Replace(entry("a", "a.test"), "hosts:", "hosts", 1), nil},
		"comment about a policy": {
			"# like AuthorizationPolicy x\na: [\n---\n" + deniesA + "---\n" + tokens, nil},
		"typo in a policy":      {edited("action:", "action"), nil},
		"typo in both":          {edited("action:", "action", "issuer:", "issuer"), nil},
		"one document, no YAML": {strings.ReplaceAll(good, "---\n", "") + "a: [", nil},
		"another name":          {edited("action:", "action", "name: x", "name: z"), all},
		"another namespace": {
			edited("action:", "action", "name: x", "name: x\n  namespace: z"), all},
		"another kind": {
			edited("action:", "action", "AuthorizationPolicy", "PeerAuthentication"), all},
		"no name":                 {edited("action:", "action", "  name: x", ""), nil},
		"no colon after kind":     {edited("kind: Auth", "kind Auth"), nil},
		"no colon after metadata": {edited("metadata:\n  name: x", "metadata\n  name: x"), nil},
		"another one without a name": {good + "---\n" +
			strings.NewReplacer("action:", "action", "  name: x", "").Replace(deniesA), all},
		"in place of the other kind, without a name": {strings.Replace(good, tokens,
			strings.NewReplacer("action:", "action", "  name: x", "").Replace(deniesA), 1), all},
		"another one with its name": {
			good + "---\n" + strings.Replace(deniesA, "action:", "action", 1), all},
		"two with its name": {
			edited("action:", "action") + "---\n" + strings.Replace(deniesA, "action:", "action", 1), all},
		"a second in its document": {strings.Replace(good, "action:", deniesA+"action", 1), all},
		"a second in its line": {
			inLine + "\n" + strings.Replace(inLine, "name: x", "name: z", 1), all},
		"name in a label": {
			edited("action:", "action", "  name: x", "  labels: {name: z}\n  name: x"), nil},
		"name in a label, in one line": {
			edited("action:", "action", "  name: x", "  {labels: {name: z}, name: x}"), all},
		"name in the key of a label": {
			edited("action:", "action", "  name: x", "  labels: {app/name: z}\n  name: x"), nil},
		"as kubectl writes it": {
			edited("action:", "action", "  name: x", "  annotations:\n    kubectl.kubernetes.io/"+
				"last-applied-configuration: |\n      "+inLine+"\n  name: x"), nil},
		"JSON in one line":        {inLine + ",", nil},
		"list with a broken item": {"kind: List\nitems:\n- " + inLine + "\n- 5\n", nil},
		"list with a broken policy": {
			"kind: List\nitems:\n- " + inLine + "\n- AuthorizationPolicy\n", all},
		"two without names": {
			strings.Repeat(strings.Replace(deniesA, "name: x", "labels: {}", 1)+"---\n", 2),
			[]string{"ns app=a at 15"}},
		"of other workloads, no name": {
			strings.NewReplacer("app: a", "app: b", "  name: x", "  labels: {}").Replace(deniesA),
			[]string{"ns app=b at 1"}},
		"removed beside an error": {
			strings.Replace(entry("a", "a.test"), "STATIC", "STATISCH", 1), nil},
		"renamed beside an error":    {edited("STATIC", "STATISCH", "name: x", "name: z"), nil},
		"other kind beside an error": {edited("kind: Auth", "kind: Sidecar #"), nil},
		"unknown kind beside an error": {
			edited("STATIC", "STATISCH", "kind: Auth", "kind: X #", "security.istio.io", "x.test"), nil},
	} {
		f := newFiles(t)
		f.write("x.yaml", good)
		f.store.Load()
		f.write("x.yaml", test.text)
		for _, when := range []string{"running", "the next agent", "the one after"} {
			f.expectDenials(name+", "+when, test.want...)
			if !f.hasPolicy("x") || !f.hasPolicy("tokens") {
				t.Errorf("%s, %s: a policy of before is not in force", name, when)
			}
			f.again()
		}
	}
}

// TestDenials_NotOfKnownPolicies adds a syntax error to files that mention policies also in
// comments, annotations or labels. All objects stay in force, and nothing is denied.
func TestDenials_NotOfKnownPolicies(t *testing.T) {
	const inJSON = `{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy",` +
		`"metadata":{"annotations":{},"name":"x"},"spec":{}}`
	metadata := func(text string) string {
		return strings.Replace(deniesA, "metadata:\n", "metadata:\n"+text, 1)
	}
	applied := "  annotations:\n    kubectl.kubernetes.io/last-applied-configuration: "
	item := strings.ReplaceAll(deniesA, "\n", "\n  ") + "\n"
	workload := "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w}\n" +
		"spec:\n  address: 192.0.2.1\n  labels: {app: a, security.istio.io/tlsMode: istio}\n"
	for name, good := range map[string]string{
		"applied by kubectl":            metadata(applied + "|\n      " + inJSON + "\n"),
		"applied by kubectl, stripped":  metadata(applied + "|-\n      " + inJSON + "\n"),
		"applied by kubectl, in quotes": metadata(applied + "'" + inJSON + "'\n"),
		"applied by kubectl, in double quotes": metadata(applied + strconv.Quote(inJSON) +
			"\n"),
		"description": metadata("  annotations:\n    note: this AuthorizationPolicy guards a\n"),
		"trailing comment": strings.Replace(deniesA, "Policy\n",
			"Policy # was an AuthorizationPolicy of v1beta1\n", 1),
		"trailing comment, CRLF": strings.ReplaceAll(strings.Replace(deniesA, "Policy\n",
			"Policy # was an AuthorizationPolicy of v1beta1\n", 1), "\n", "\r\n"),
		"trailing comment in another object": entry("a", "a.test") +
			"  location: MESH_EXTERNAL # see AuthorizationPolicy x\n",
		"labels in a line": metadata("  labels: {name: edge}\n"),
		"labels in lines":  metadata("  labels:\n    name: edge\n"),
		"anchor":           strings.Replace(metadata("  labels: {name: z}\n"), "data:", "data: &m", 1),
		"list": "apiVersion: v1\nkind: List\nitems:\n- " + item + "- " +
			strings.ReplaceAll(tokens, "\n", "\n  "),
		"label of Istio": workload,
	} {
		f := newFiles(t)
		f.write("x.yaml", good)
		f.store.Load()
		f.expectProblems()
		before := f.store.Objects("ns")
		f.write("x.yaml", strings.TrimRight(good, "\r\n ")+"\n  a: [\n")
		for _, when := range []string{"running", "the next agent", "the one after"} {
			f.expectDenials(name + ", " + when)
			if now := f.store.Objects("ns"); !slices.EqualFunc(now, before, object.Equal) {
				t.Errorf("%s, %s: objects %v, want %v", name, when, now, before)
			}
			f.again()
		}
	}
	f := newFiles(t)
	f.write("x.yaml", strings.Replace(workload, "  address", "\taddress", 1))
	f.expectDenials("label of Istio, first agent")
}

// TestDenials_NoPolicyIsRemovedBesideAnError: a policy removed from a file with an error stays in
// force, and a problem says so until the error is corrected.
func TestDenials_NoPolicyIsRemovedBesideAnError(t *testing.T) {
	f := newFiles(t)
	f.write("x.yaml", entry("a", "a.test")+"---\n"+deniesA)
	f.store.Load()
	f.write("x.yaml", strings.Replace(entry("a", "a.test"), "STATIC", "STATISCH", 1))
	f.store.Load()
	f.expectProblems("x.yaml:1: AuthorizationPolicy ns/x: stays in force although the file does not have "+
		"it any more, because the file has an error; correct the error",
		`x.yaml:6: ServiceEntry ns/a: spec.resolution: "STATISCH" is not one of NONE, STATIC, DNS, `+
			"DNS_ROUND_ROBIN, DYNAMIC_DNS")
	f.write("x.yaml", entry("a", "a.test"))
	f.store.Load()
	f.expectProblems()
	if f.hasPolicy("x") {
		t.Error("the policy is in force")
	}
}

// TestDenials_OfUnreadableFileAreReported reads an unreadable file repeatedly. Each time, the
// denial is reported. If the file was read before and had no objects, nothing is denied.
func TestDenials_OfUnreadableFileAreReported(t *testing.T) {
	f := newFiles(t)
	invalid := strings.Replace(deniesA, "DENY", "DENIED", 1)
	f.write("never.yaml", "")
	f.write("invalid.yaml", invalid)
	f.write("valid.yaml", deniesA)
	f.write("known.yaml", "# has no objects\n")
	f.store.Load()
	delete(f.store.files, f.path("never.yaml"))
	for _, name := range []string{"never.yaml", "invalid.yaml", "valid.yaml", "known.yaml"} {
		if err := os.Truncate(f.path(name), maxFile+1); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		f.store.Reload([]string{f.path("never.yaml"), f.path("invalid.yaml"), f.path("valid.yaml"),
			f.path("known.yaml")})
		if got, want := f.denials(), []string{"ns app=a at 1", "all at 1"}; !slices.Equal(got, want) {
			t.Errorf("denials %q, want %q", got, want)
		}
		if !f.hasPolicy("x") {
			t.Error("the valid policy is not in force")
		}
		for name, message := range map[string]string{"never.yaml": "every request to all workloads is denied",
			"invalid.yaml": "every request to the workloads that it selects is denied"} {
			if !slices.ContainsFunc(f.store.Problems(), func(p object.Problem) bool {
				return p.File == f.path(name) && p.Severity == condition.Error &&
					strings.Contains(p.Message, message)
			}) {
				t.Errorf("%s: no problem says %q: %v", name, message, f.problems())
			}
		}
	}
	f.write("never.yaml", "")
	f.write("invalid.yaml", "# none\n")
	f.store.Load()
	if got := f.denials(); len(got) > 0 {
		t.Errorf("readable again: denials %q", got)
	}
}

// TestMentioned_InOneLine compares how long the search for policies takes in a text with many keys
// in one line, and in one with each key in its own line. If the time grew with the square of the
// line's length, the first search would take at least 20 times as long (minutes for some hundred
// kilobytes).
func TestMentioned_InOneLine(t *testing.T) {
	const policy = `{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy",`
	for name, text := range map[string]string{
		"names":    policy + `"metadata":{"labels":{` + strings.Repeat(`"name":"a", `, 40_000),
		"metadata": policy + strings.Repeat(`"metadata":1, `, 5_000),
	} {
		took := func(text string) time.Duration {
			start := time.Now()
			if r := (&reader{text: []byte(text)}); len(r.mentioned()) == 0 {
				t.Errorf("%s: no policy is found", name)
			}
			return time.Since(start)
		}
		inLines := took(strings.ReplaceAll(text, ", ", ",\n"))
		if inOne := took(text); inOne > 10*inLines+time.Second {
			t.Errorf("%s: in one line %v, in as many lines %v", name, inOne, inLines)
		}
	}
}
