package mesh_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery/mesh"
)

func TestPeers_HaveTrustDomainAliases(t *testing.T) {
	m := mesh.Default()
	account := m.ServiceAccountID("shop", "web")
	if want := "spiffe://cluster.local/ns/shop/sa/web"; account != want {
		t.Errorf("account %s, want %s", account, want)
	}
	names := []string{"web.test", account, "spiffe://cluster.local/other", "spiffe://"}
	if d := cmp.Diff([]string{"spiffe://", "spiffe://cluster.local/ns/shop/sa/web",
		"spiffe://cluster.local/other", "web.test"}, m.AcceptedSANs(names)); d != "" {
		t.Errorf("without aliases (-want +got):\n%s", d)
	}
	m.TrustDomainAliases = []string{"old.example", "cluster.local"}
	want := []string{"spiffe://", "spiffe://cluster.local/ns/shop/sa/web",
		"spiffe://cluster.local/other", "spiffe://old.example/ns/shop/sa/web", "web.test"}
	if d := cmp.Diff(want, m.AcceptedSANs(names)); d != "" {
		t.Errorf("with aliases (-want +got):\n%s", d)
	}
	if peers := m.AcceptedSANs(nil); len(peers) != 0 {
		t.Errorf("of nobody: %v", peers)
	}
}
