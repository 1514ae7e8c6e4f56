package cluster

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// WorkloadEntry contains those fields of Istio's WorkloadEntry that tests read.
type WorkloadEntry struct {
	Metadata struct {
		UID         string
		Labels      map[string]string
		Annotations map[string]string
	}
	Spec   json.RawMessage
	Status struct {
		Conditions []struct{ Type, Status, Message string }
	}
}

// ConnectedAt returns when istiod registered the newest connection of the workload.
func (e WorkloadEntry) ConnectedAt() string { return e.Metadata.Annotations["istio.io/connectedAt"] }

// Controller returns the name of the istiod to which the workload connected last.
func (e WorkloadEntry) Controller() string {
	return e.Metadata.Annotations["istio.io/workloadController"]
}

// Health returns the status and message of the condition Healthy; "unknown" if there is none.
func (e WorkloadEntry) Health() string {
	for _, c := range e.Status.Conditions {
		if c.Type == "Healthy" {
			return strings.TrimSpace(c.Status + " " + c.Message)
		}
	}
	return "unknown"
}

func entries(namespace string) string {
	return "/apis/networking.istio.io/v1/namespaces/" + namespace + "/workloadentries"
}

// WorkloadEntry returns a WorkloadEntry, or nil if it does not exist.
func (c *Cluster) WorkloadEntry(namespace, name string) *WorkloadEntry {
	var e WorkloadEntry
	if !c.Get(entries(namespace)+"/"+name, &e) {
		return nil
	}
	return &e
}

// WorkloadEntries returns the WorkloadEntries of a namespace.
func (c *Cluster) WorkloadEntries(namespace string) []json.RawMessage {
	var list struct{ Items []json.RawMessage }
	c.Get(entries(namespace), &list)
	return list.Items
}

// AwaitWorkloadEntryHealth waits until the Health of a WorkloadEntry begins with prefix, and
// returns the WorkloadEntry.
func (c *Cluster) AwaitWorkloadEntryHealth(t testing.TB, limit time.Duration,
	namespace, name, prefix string) *WorkloadEntry {
	t.Helper()
	var e *WorkloadEntry
	parts.Eventually(t, limit, "the WorkloadEntry's health is "+prefix, func() bool {
		e = c.WorkloadEntry(namespace, name)
		return e != nil && strings.HasPrefix(e.Health(), prefix)
	})
	return e
}

// UIDAndHealth returns the UID and the Health, as a state for WatchWorkloadEntry.
func (e WorkloadEntry) UIDAndHealth() string { return e.Metadata.UID + " " + e.Health() }

// WatchWorkloadEntry watches a WorkloadEntry until stop is called. stop returns the sequence of its
// states, in which consecutive states differ. state returns the state of a WorkloadEntry; the state
// "none" means that it does not exist.
func (c *Cluster) WatchWorkloadEntry(namespace, name string,
	state func(WorkloadEntry) string) (stop func() []string) {
	c.t.Helper()
	const none = "none"
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(cancel)
	// c.client has a timeout, which would end the watch
	client := &http.Client{Transport: c.client.Transport}
	path := entries(namespace) + "?watch=1&fieldSelector=metadata.name=" + name
	response, err := c.send(ctx, client, http.MethodGet, path, "") //nolint:bodyclose // closed below
	if err != nil {
		c.t.Fatal(err)
	}
	var mu sync.Mutex
	seen := []string{none}
	record := func(now string) {
		mu.Lock()
		defer mu.Unlock()
		if seen[len(seen)-1] != now {
			seen = append(seen, now)
		}
	}
	go func() {
		defer func() { _ = response.Body.Close() }()
		for decoder := json.NewDecoder(response.Body); ; {
			var event struct {
				Type   string
				Object WorkloadEntry
			}
			if err := decoder.Decode(&event); err != nil {
				record("the watch ends: " + err.Error())
				return
			}
			if event.Type == "DELETED" {
				record(none)
			} else {
				record(state(event.Object))
			}
		}
	}()
	return func() (states []string) {
		c.t.Helper()
		defer cancel()
		parts.Eventually(c.t, time.Minute, "the watch has the last change", func() bool {
			now := none
			if e := c.WorkloadEntry(namespace, name); e != nil {
				now = state(*e)
			}
			mu.Lock()
			defer mu.Unlock()
			states = seen[1:]
			return seen[len(seen)-1] == now
		})
		return states
	}
}
