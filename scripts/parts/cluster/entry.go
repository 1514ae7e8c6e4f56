package cluster

import (
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// Entry is a WorkloadEntry.
type Entry struct {
	Metadata struct {
		UID         string
		Labels      map[string]string
		Annotations map[string]string
	}
	Status struct {
		Conditions []struct{ Type, Status, Message string }
	}
}

// ConnectedAt returns when istiod saw the newest connection.
func (e Entry) ConnectedAt() string { return e.Metadata.Annotations["istio.io/connectedAt"] }

// Controller returns the istiod that has the newest connection.
func (e Entry) Controller() string { return e.Metadata.Annotations["istio.io/workloadController"] }

// Health returns the status of the condition Healthy with its message.
func (e Entry) Health() string {
	for _, c := range e.Status.Conditions {
		if c.Type == "Healthy" {
			return strings.TrimSpace(c.Status + " " + c.Message)
		}
	}
	return "unknown"
}

// Entry returns a WorkloadEntry, nil if there is none.
func (c *Cluster) Entry(namespace, name string) *Entry {
	var e Entry
	if !c.Get("/apis/networking.istio.io/v1/namespaces/"+namespace+"/workloadentries/"+name, &e) {
		return nil
	}
	return &e
}

// AwaitEntry waits until the health of a WorkloadEntry has a prefix, and returns it.
func (c *Cluster) AwaitEntry(t testing.TB, limit time.Duration,
	namespace, name, prefix string) *Entry {
	t.Helper()
	var e *Entry
	parts.Eventually(t, limit, "the WorkloadEntry's health is "+prefix, func() bool {
		e = c.Entry(namespace, name)
		return e != nil && strings.HasPrefix(e.Health(), prefix)
	})
	return e
}

// FollowEntry records each change of the UID and health of a WorkloadEntry, "none" without one,
// until the returned function is called.
func (c *Cluster) FollowEntry(namespace, name string) (stop func() []string) {
	end := make(chan struct{})
	var seen []string
	var group sync.WaitGroup
	group.Go(func() {
		for {
			now := "none"
			if e := c.Entry(namespace, name); e != nil {
				now = e.Metadata.UID + " " + e.Health()
			}
			if len(seen) == 0 || seen[len(seen)-1] != now {
				seen = append(seen, now)
			}
			select {
			case <-end:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() []string { close(end); group.Wait(); return seen }
}
