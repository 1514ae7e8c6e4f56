// Package decisiontable compares access decisions: the same policies through a real istiod with its
// API server and through the embedded server, the same requests through the same Envoy, and how
// package explain predicts the answers.
package decisiontable

import (
	"crypto/tls"
	"maps"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
)

// seed determines the requests and the random policies.
const seed = 26

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each case has its own namespace, workload and ports; all objects are loaded at once. The
// resources of all workloads run in one Envoy, unchanged.

// TestDecisions_AsWithIstiod sends the same requests to workloads that istiod configures and to
// those that the embedded server configures. Statuses, bodies and headers must be equal, and
// explanations must predict the statuses.
func TestDecisions_AsWithIstiod(t *testing.T) {
	pki := newIdentities(t)
	keys := newTokens(t)
	backend := startBackend(t)
	authorizers := startAuthorizers(t)
	cases := allCases(t, keys, backend)
	planes := []struct {
		name      string
		workloads map[string]*workload
	}{
		{"istiod", fromIstiod(t, cases, authorizers)},
		{"outrider", fromOutrider(t, cases, authorizers)},
	}
	answers := map[string][]answer{}
	for _, plane := range planes {
		t.Run(plane.name, func(t *testing.T) {
			envoy := startEnvoy(t, plane.workloads, pki)
			predicted, authorizer, codec := 0, 0, 0
			for _, c := range cases {
				of := plane.workloads[c.name]
				for i, r := range c.requests {
					authorizers.take()
					got := r.send(t, c, pki)
					got.Called = authorizers.take()
					answers[plane.name] = append(answers[plane.name], got)
					if why := of.explain(c, r, got); why != "" {
						t.Errorf("%s, request %d, %s: %s\n%s", c.name, i, r, why, c.text())
					}
				}
				predicted, authorizer, codec = predicted+of.predicted, authorizer+of.authorizer,
					codec+of.codec
			}
			envoy.expectAccepted(t)
			t.Logf("%d answers and %d calls of authorizers as explained, %d refused by the codec",
				predicted, authorizer, codec)
		})
	}
	compare(t, cases, answers["istiod"], answers["outrider"])
}

// compare compares the answers to the requests of all cases.
func compare(t testing.TB, cases []*testCase, istiod, outrider []answer) {
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
	if at < 300 {
		t.Errorf("%d requests, want 300 at least", at)
	}
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
