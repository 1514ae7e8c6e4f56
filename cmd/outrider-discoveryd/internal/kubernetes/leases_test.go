package kubernetes

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
	"outrider.org/outrider/scripts/parts/cluster"
)

// testLease renews a Lease in the namespace of the kubeconfig's context. If the namespace does not
// exist, the error reports that, and is not registration.ErrConflict.
func testLease(t *testing.T, c *cluster.Cluster) {
	kubeconfig := c.Kubeconfig(t, c.APIServerAddress(), "secret")
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"absent", namespace(c, "leases")} {
		if err := os.WriteFile(kubeconfig, []byte(strings.Replace(string(text), "user: u}",
			"user: u, namespace: "+name+"}", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := NewEntryStore(Options{Kubeconfig: kubeconfig})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			err = s.RenewLease(t.Context(), "one", time.Second)
		}
		if name != "absent" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || errors.Is(err, registration.ErrConflict) ||
			!strings.Contains(err.Error(), `namespaces "absent" not found`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
