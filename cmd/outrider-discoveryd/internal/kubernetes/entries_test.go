package kubernetes

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
)

// After an API server has lost its data, EntryStore returns none of the lost WorkloadEntries, so
// that servers register their connected workloads again.
func TestEntries_HaveNothingThatAnEmptyListLacks(t *testing.T) {
	s, err := NewEntryStore(Options{Kubeconfig: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Entries(); err == nil {
		t.Error("the state counts as known before the first list")
	}
	one := func(name, group string) any {
		return &istioObject{ObjectMeta: metav1.ObjectMeta{Namespace: "vm", Name: name,
			Annotations: map[string]string{registration.GroupAnnotation: group}}}
	}
	c := s.collections[0]
	for i, list := range [][]any{{one("a", "web"), one("b", "")}, {}, {one("a", "web")}} {
		if err := c.Replace(list, ""); err != nil {
			t.Fatal(err)
		}
		all, err := s.Entries()
		if want := []int{1, 0, 1}[i]; err != nil || len(all) != want {
			t.Errorf("list %d: %d entries, want %d (%v)", i, len(all), want, err)
		}
	}
}
