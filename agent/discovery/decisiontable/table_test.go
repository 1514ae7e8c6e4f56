// Package decisiontable compares access decisions: policies through a real istiod with its API
// server, requests through an Envoy, and how package explain predicts the answers.
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

// Each case has its own namespace, workload and ports; all objects are loaded at once. The resources
// of all workloads run in one Envoy, unchanged.

// TestDecisions_AsExplained sends requests to workloads that istiod configures. Explanations must
// predict the statuses.
func TestDecisions_AsExplained(t *testing.T) {
	pki := newIdentities(t)
	keys := newTokens(t)
	backend := startBackend(t)
	authorizers := startAuthorizers(t)
	cases := allCases(t, keys, backend)
	workloads := fromIstiod(t, cases, authorizers)
	envoy := startEnvoy(t, workloads, pki)
	predicted, external := 0, 0
	for _, c := range cases {
		of := workloads[c.name]
		for i, r := range c.requests {
			if why := of.explain(c, r, r.send(t, c, pki)); why != "" {
				t.Errorf("%s, request %d, %s: %s\n%s", c.name, i, r, why, c.text())
			}
		}
		predicted, external = predicted+of.predicted, external+of.external
	}
	envoy.expectAccepted(t)
	t.Logf("%d cases, %d answers as explained, %d by others", len(cases), predicted, external)
	if predicted < 300 {
		t.Errorf("%d explained answers, want 300 at least", predicted)
	}
}

// workload is a proxy's resources.
type workload struct {
	snapshot            *resource.Snapshot
	predicted, external int // explanations that predict the answer, and that cannot
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

func newIdentities(t *testing.T) *identities {
	t.Helper()
	return &identities{pkitest.NewAuthority(t, "mesh", nil), map[string]*tls.Certificate{}}
}
