// Package decisiontable compares access decisions: the same policies through a real istiod with its
// API server and through the embedded server, the same requests through the same Envoy, and how
// package explain predicts the answers.
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

// Each case has its own namespace, workload and ports; all objects are loaded at once. The
// resources of all workloads run in one Envoy, unchanged.

// source returns the resources that a server has for the workload of a case now.
type source func(*testCase) *workload

// plane is a server with the cases.
type plane struct {
	name string
	from source
}

// TestDecisions_AsWithIstiod sends the same requests to workloads that istiod configures and to
// those that the embedded server configures. Statuses, bodies and headers must be equal, and
// explanations must predict the statuses. The cases whose key set is fetched are compared again
// after the keys have changed.
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
		m.requestsFor(c) // besides those with tokens of the former key
	}
	t.Run("changed keys", func(t *testing.T) {
		if statuses := r.compare(t, fetched); statuses["200"] == 0 || statuses["401"] == 0 {
			t.Errorf("statuses %v, want 200 and 401 among them", statuses)
		}
	})
}

// rig is what all comparisons share.
type rig struct {
	pki         *identities
	keys        *tokens
	authorizers *authorizers
	planes      []plane
}

// compare compares the answers of both planes to the requests of cases, and returns how many there
// are of each status.
func (r *rig) compare(t *testing.T, cases []*testCase) map[string]int {
	t.Helper()
	answers := map[string][]answer{}
	for _, p := range r.planes {
		t.Run(p.name, func(t *testing.T) { answers[p.name] = r.answers(t, cases, p.from) })
	}
	return compare(t, cases, answers["istiod"], answers["outrider"])
}

// answers sends the requests of cases to an Envoy with the resources from a server.
func (r *rig) answers(t *testing.T, cases []*testCase, from source) (answers []answer) {
	t.Helper()
	workloads := from.workloads(t, cases, r.keys)
	envoy := startEnvoy(t, workloads, r.pki)
	predicted, authorizer, codec := 0, 0, 0
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
	}
	envoy.expectAccepted(t)
	t.Logf("%d answers and %d calls of authorizers as explained, %d refused by the codec",
		predicted, authorizer, codec)
	return answers
}

// keySetTime bounds the wait for a changed key set: after a failed attempt, istiod fetches none for
// a minute.
const keySetTime = 5 * time.Minute

// workloads returns the resources of cases, once they contain the key set that the server fetches.
// Cases without an unreachable issuer must come first: for the others, istiod begins such attempts.
func (s source) workloads(t testing.TB, cases []*testCase, keys *tokens) map[string]*workload {
	t.Helper()
	found := map[string]*workload{}
	for _, c := range cases {
		parts.EventuallySees(t, keySetTime, "the key set is fetched for "+c.name,
			func() (bool, string) {
				found[c.name] = s(c)
				return !c.fetches || found[c.name].contains(keys.modulus()), c.text()
			})
	}
	return found
}

// compare compares the answers to the requests of cases, and returns how many there are of each
// status.
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

// workload is a proxy's resources.
type workload struct {
	snapshot *resource.Snapshot
	// explanations that predict the answer or the call of an authorizer, and answers of the codec
	predicted, authorizer, codec int
}

func newWorkload(resources []*resource.Resource) *workload {
	feed := resource.NewFeed()
	return &workload{snapshot: feed.Publish(resource.Change{Set: resources})}
}

// contains reports whether a listener contains a text.
func (w *workload) contains(text string) bool {
	for _, r := range w.snapshot.Set(resource.ListenerType) {
		if bytes.Contains(r.Value(), []byte(text)) {
			return true
		}
	}
	return false
}

// all returns the resources of one type of all workloads.
func all(workloads map[string]*workload) []*resource.Resource {
	union := map[resource.Key]*resource.Resource{}
	for _, name := range slices.Sorted(maps.Keys(workloads)) {
		for _, kind := range workloads[name].snapshot.Types() {
			for _, r := range workloads[name].snapshot.Set(kind) {
				union[r.Key()] = r
			}
		}
	}
	return slices.Collect(maps.Values(union))
}

// identities issues the certificates of the mesh.
type identities struct {
	authority *pkitest.Authority
	issued    map[string]*tls.Certificate // of clients, by ID
}

func newIdentities(t testing.TB) *identities {
	t.Helper()
	return &identities{pkitest.NewAuthority(t, "mesh", nil), map[string]*tls.Certificate{}}
}
