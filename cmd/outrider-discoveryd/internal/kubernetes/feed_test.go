package kubernetes

import (
	"testing"

	"outrider.org/outrider/agent/discovery"
)

func TestFeed_IsSyncedOnceTheSinkHasTheFirstBatch(t *testing.T) {
	var r *Registry
	var early bool
	r, err := NewRegistry(Options{Name: "kubernetes"}, func(b discovery.SourceUpdate) {
		early = early || b.Complete && r.Status().Synced
	})
	if err != nil {
		t.Fatal(err)
	}
	r.send()
	if r.Status().Synced {
		t.Error("synchronised before the first lists")
	}
	for _, c := range r.collections {
		if err := c.Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	r.send()
	if early || !r.Status().Synced {
		t.Errorf("synchronised before the first batch %v, after it %v", early, r.Status().Synced)
	}
}
