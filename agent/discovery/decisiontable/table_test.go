// Package decisiontable compares access decisions for the same policies: those of an Envoy that a
// real istiod with an API server configures, those of an Envoy that the embedded server configures,
// and those that package explain predicts.
package decisiontable

import (
	"bytes"
	"crypto/tls"
	"maps"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// seed determines the requests and the random policies.
const seed = 26

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each case has its own namespace, workload and ports. All objects are loaded at once, and one
// Envoy uses the resources of all workloads, exactly as the discovery server sent them.

// source returns the resources that a server currently has for the workload of a case.
type source func(*testCase) *workload

// plane is a control plane with the objects of all cases.
type plane struct {
	name string
	from source
}

// TestDecisions_AsWithIstiod sends the same requests to workloads that istiod configures and to
// those that the embedded server configures. Statuses, bodies and headers must be equal, and
// explanations must predict the statuses. Cases whose key set is fetched are compared again after
// the keys have changed.
func TestDecisions_AsWithIstiod(t *testing.T) {
	r := &rig{pki: newIdentities(t), keys: newTokens(t), authorizers: startAuthorizers(t)}
	m := &maker{t: t, keys: r.keys, backend: startBackend(t)}
	m.allCases()
	r.planes = []plane{{"istiod", startIstiod(t, m.cases, r.authorizers)},
		{"outrider", startOutrider(t, m.cases, r.authorizers)}}
	if statuses := r.compare(t, m.cases); total(statuses) < 300 {
		t.Errorf("%d requests, want 300 at least", total(statuses))
	}
	fetched := slices.DeleteFunc(m.cases, func(c *testCase) bool { return !c.fetches })
	r.keys.rotate(t)
	for _, c := range fetched {
		m.requestsFor(c) // adds requests with tokens of the new key to those of the earlier key
	}
	t.Run("changed keys", func(t *testing.T) {
		if statuses := r.compare(t, fetched); statuses["200"] == 0 || statuses["401"] == 0 {
			t.Errorf("statuses %v, want 200 and 401 among them", statuses)
		}
	})
}

// rig holds the certificates, keys, authorizers and control planes that all comparisons share.
type rig struct {
	pki         *identities
	keys        *tokens
	authorizers *authorizers
	planes      []plane
}

// compare compares the answers of both control planes to the requests of cases. It returns the
// number of answers by status.
func (r *rig) compare(t *testing.T, cases []*testCase) map[string]int {
	t.Helper()
	answers := map[string][]answer{}
	for _, p := range r.planes {
		t.Run(p.name, func(t *testing.T) { answers[p.name] = r.answers(t, cases, p.from) })
	}
	return compare(t, cases, answers["istiod"], answers["outrider"])
}

// answers sends the requests of cases to an Envoy with the resources of a control plane.
func (r *rig) answers(t *testing.T, cases []*testCase, from source) (answers []answer) {
	t.Helper()
	workloads := from.workloads(t, cases, r.keys)
	envoy := startEnvoy(t, workloads, r.pki)
	predicted, authorizer, codec, placed := 0, 0, 0, 0
	for _, c := range cases {
		of := workloads[c.name]
		for i, request := range c.requests {
			r.authorizers.take()
			got := request.send(t, c, r.pki)
			got.Called = r.authorizers.take()
			answers = append(answers, got)
			if why := of.explain(c, request, got); why != "" {
				t.Errorf("%s, request %d, %s: %s\n%s", c.name, i, request, why, c.text())
			}
		}
		predicted, authorizer, codec = predicted+of.predicted, authorizer+of.authorizer,
			codec+of.codec
		placed += of.placed
	}
	envoy.expectAccepted(t)
	t.Logf("%d answers and %d calls of authorizers as explained, %d refused by the codec, %d "+
		"explained by the place of the only policy", predicted, authorizer, codec, placed)
	return answers
}

// keySetTime bounds the wait for a changed key set: after a failed attempt, istiod does not fetch
// it for a minute.
const keySetTime = 5 * time.Minute

// workloads returns the resources of cases once they contain the key set that the server fetches.
// Cases with an unreachable issuer must come last, because the attempts to fetch from it delay
// istiod.
func (s source) workloads(t testing.TB, cases []*testCase, keys *tokens) map[string]*workload {
	t.Helper()
	found := map[string]*workload{}
	for _, c := range cases {
		parts.EventuallyWithObservation(t, keySetTime, "the key set is fetched for "+c.name,
			func() (bool, string) {
				found[c.name] = s(c)
				return !c.fetches || found[c.name].contains(keys.modulus()), c.text()
			})
	}
	return found
}

// compare compares two lists of answers to the requests of cases. It returns the number of answers
// by status.
func compare(t testing.TB, cases []*testCase, istiod, outrider []answer) map[string]int {
	t.Helper()
	if len(istiod) != len(outrider) {
		t.Fatalf("%d answers with istiod, %d with the embedded server", len(istiod), len(outrider))
	}
	at, statuses := 0, map[string]int{}
	for _, c := range cases {
		for i, r := range c.requests {
			if diff := istiod[at].diff(outrider[at]); diff != "" {
				t.Errorf("%s, request %d, %s (-istiod +outrider):\n%s\n%s", c.name, i, r, diff,
					c.text())
			}
			statuses[istiod[at].result()]++
			at++
		}
	}
	t.Logf("%d cases, %d requests", len(cases), at)
	for _, status := range slices.Sorted(maps.Keys(statuses)) {
		t.Logf("%5d %s", statuses[status], status)
	}
	return statuses
}

func total(statuses map[string]int) (count int) {
	for _, n := range statuses {
		count += n
	}
	return count
}

// workload holds the resources of a proxy.
type workload struct {
	snapshot *resource.Snapshot
	// numbers of responses that explanations predicted, of predicted calls of an external
	// authorizer, and of responses by Envoy's HTTP codec, which are not explained
	predicted, authorizer, codec int
	// access policies in the file of the case, by kind, namespace and name; nil with istiod
	places map[string]resource.Origin
	// number of checked positions: requests refused by a kind of policy of which the case has only
	// one object, whose position the explanation must state
	placed int
}

func newWorkload(resources []*resource.Resource) *workload {
	feed := resource.NewFeed()
	return &workload{snapshot: feed.Publish(resource.Change{Set: resources})}
}

// contains reports whether a listener contains a text.
func (w *workload) contains(text string) bool {
	for _, r := range w.snapshot.ByType(resource.ListenerType) {
		if bytes.Contains(r.EncodedMessage(), []byte(text)) {
			return true
		}
	}
	return false
}

// all returns the resources of one type, of all workloads.
func all(workloads map[string]*workload) []*resource.Resource {
	union := map[resource.Key]*resource.Resource{}
	for _, name := range slices.Sorted(maps.Keys(workloads)) {
		for _, kind := range workloads[name].snapshot.Types() {
			for _, r := range workloads[name].snapshot.ByType(kind) {
				union[r.Key()] = r
			}
		}
	}
	return slices.Collect(maps.Values(union))
}

// identities issues the certificates of the mesh.
type identities struct {
	authority *pkitest.Authority
	issued    map[string]*tls.Certificate // certificates of clients by SPIFFE ID
}

func newIdentities(t testing.TB) *identities {
	t.Helper()
	return &identities{pkitest.NewAuthority(t, "mesh", nil), map[string]*tls.Certificate{}}
}
