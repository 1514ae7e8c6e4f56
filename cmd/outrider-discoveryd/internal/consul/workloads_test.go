package consul

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
	"outrider.org/outrider/scripts/parts/catalog"
)

// A value in Consul that becomes invalid does not change the WorkloadEntry: its last valid version
// remains in force. The registry reports a problem until the value is valid again.
func TestWatcher_KeepsTheLastVersionOfABrokenValue(t *testing.T) {
	s := &sink{}
	registry, err := New(Options{Name: "consul", Address: "http://127.0.0.1:1",
		Sink:   s.AcceptUpdate,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	registry.synced = true
	const good, broken = `{"spec":{"address":"10.0.0.1"}}`, `{"spec":`
	for index, step := range []struct{ value, problem string }{
		{good, ""},
		{broken, "vm/a: unexpected end of JSON input: its last version stays"},
		{good, ""},
	} {
		for range 2 { // with an identical second list, the result must not change
			registry.watchers[0].setWorkloads(answer[api.KVPairs]{value: api.KVPairs{{
				Key: workloadKeys + "vm/a", Value: []byte(step.value),
				ModifyIndex: uint64(index + 1)}}}, time.Now()) //nolint:gosec // small
			if got := s.Text("consul:WorkloadEntry/vm/a"); !strings.Contains(got, "10.0.0.1") {
				t.Errorf("%s: the entry is %q", step.value, got)
			}
			problem := registry.Status().Problem
			if !strings.HasSuffix(problem, step.problem) || step.problem == "" && problem != "" {
				t.Errorf("%s: problem %q, want %q", step.value, problem, step.problem)
			}
		}
	}
}

// After a workload has left, the output of its check in Consul reports since when it is not
// connected.
func TestWorkload_CheckSaysThatItIsNotConnected(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	web := webWorkload("10.0.0.1")
	web.Annotations = nil // without a health check, the output is "connected"
	for want, c := range map[string]registration.Connection{
		"connected": connection("a", at),
		"not connected since 2026-01-02T03:04:05Z, before: connected": {Controller: "a",
			DisconnectedAt: at},
	} {
		ops := newWorkload(web, c).operations()
		if got := ops[len(ops)-1].Check.Check.Output; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The labels that a workload chooses do not change its service in Consul: the WorkloadGroup names
// it.
func TestWorkload_GroupNamesTheService(t *testing.T) {
	web := webWorkload("10.0.0.1")
	web.Spec.Labels["app"] = "payments"
	named := *webGroup
	named.Spec = nil
	for want, group := range map[string]*registration.WorkloadGroup{"shop": webGroup,
		"web": &named} {
		web.Group = group
		for _, s := range newWorkload(web, connection("a", time.Now())).services() {
			if name, _, _ := strings.Cut(s.Service, "-"); name != want {
				t.Errorf("instance of %s, want %s", s.Service, want)
			}
		}
	}
}

// A workload whose service instances exceed the size of a Consul transaction is refused as invalid.
// The error is not a failure of Consul.
func TestStore_RefusesWhatConsulNeverAccepts(t *testing.T) {
	t.Parallel()
	consul := catalog.Start(t, catalog.Options{})
	s := start(t, Options{Address: consul.Address})
	s.awaitSynced()
	web := webWorkload("10.0.0.1")
	for i := range maxPorts {
		web.Spec.Ports[fmt.Sprintf("tcp-%d", i)] = uint32(9000 + i) //nolint:gosec // small
	}
	for i := range maxLabels {
		web.Spec.Labels[fmt.Sprintf("%sexample/%d", strings.Repeat(strings.Repeat("x", 60)+".", 4),
			i)] = strings.Repeat("y", 63)
	}
	err := NewStore(s.registry, nil).Create(t.Context(), web, connection("a", time.Now()))
	if !errors.Is(err, registration.ErrInvalid) {
		t.Errorf("%.300v", err)
	}
}
