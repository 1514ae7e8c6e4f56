package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/xds"
)

// later is a time after which no further write of the servers is pending.
const later = 5 * grace

// entry returns the entry of the workload webKey, or nil.
func (m *memory) entry() *WorkloadEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.entries[webKey]
}

// removedAfter waits until the entry of webKey is removed, and returns how long it has waited.
func (m *memory) removedAfter(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	begun := time.Now()
	for m.entry() != nil {
		if time.Since(begun) > limit {
			t.Fatalf("the entry is there after %v: %+v", limit, m.entry())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begun)
}

// life runs a test with two servers that share a store, in virtual time.
func life(t *testing.T, name string, test func(*testing.T, *memory, *instance, *instance)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			a, b := serving(t, m), serving(t, m)
			time.Sleep(time.Second)
			test(t, m, a, b)
			a.stop()
			b.stop()
		})
	})
}

func TestServer_Life(t *testing.T) {
	life(t, "health and end", func(t *testing.T, m *memory, a, _ *instance) {
		r := a.open()
		r.ReportHealth(false, strings.Repeat("x", 2*maxMessage))
		time.Sleep(time.Second)
		if h := m.entry().Health; h == nil || h.Healthy || len(h.Message) > maxMessage+3 {
			t.Errorf("%+v", h)
		}
		r.ReportHealth(true, "")
		time.Sleep(2 * healthPause)
		if h := m.entry().Health; !h.Healthy || h.Message != "" {
			t.Errorf("%+v", h)
		}
		r.End()
		time.Sleep(time.Second)
		if e := m.entry(); e.connected() || e.DisconnectedAt.IsZero() || e.Controller != a.instance {
			t.Errorf("%+v", e)
		}
		if took := m.removedAfter(t, grace+time.Second); took < grace-time.Second {
			t.Errorf("removed after %v", took)
		}
	})
	life(t, "flapping health", func(t *testing.T, m *memory, a, _ *instance) {
		r := a.open()
		before := m.writes()
		for i := range 1000 {
			r.ReportHealth(i%2 == 0, "")
			time.Sleep(10 * time.Millisecond)
		}
		// each of the two servers also renews its lease twice a second
		if writes := m.writes() - before; writes > 10+2+2*2*(10+1) {
			t.Errorf("%d writes in 10 s", writes)
		}
	})
	life(t, "dead server", func(t *testing.T, m *memory, a, b *instance) {
		a.open()
		a.kill()
		if took := m.removedAfter(t, grace+2*time.Second); took < grace {
			t.Errorf("removed after %v", took)
		}
		time.Sleep(3 * grace)
		if all, _ := m.LeaseVersions(t.Context()); all[a.instance] != "" || all[b.instance] == "" {
			t.Errorf("leases: %v", all)
		}
	})
	life(t, "move from a dead server", func(t *testing.T, m *memory, a, b *instance) {
		a.open()
		a.kill()
		time.Sleep(grace - time.Second)
		b.open()
		time.Sleep(later)
		m.check(t, "connected to "+a.instance, "connected to "+b.instance)
	})
	life(t, "moves", func(t *testing.T, m *memory, a, b *instance) {
		var want []string
		r := a.open()
		want = append(want, "connected to "+a.instance)
		for range 20 {
			for _, s := range []*instance{b, a} {
				next := s.open()
				r.End()
				r = next
				want = append(want, "connected to "+s.instance)
				time.Sleep(500 * time.Millisecond)
			}
		}
		time.Sleep(later)
		m.check(t, want...)
	})
	life(t, "two streams", func(t *testing.T, m *memory, a, b *instance) {
		a.open()
		second := b.open()
		// b is the controller of the entry, so b marks it as disconnected, and a then claims it
		// again
		second.End()
		time.Sleep(later)
		m.check(t, "connected to "+a.instance, "connected to "+b.instance, "disconnected",
			"connected to "+a.instance)
	})
	life(t, "stop", func(t *testing.T, m *memory, a, _ *instance) {
		a.open()
		a.stop()
		m.check(t, "connected to "+a.instance, "disconnected")
		m.removedAfter(t, grace+2*time.Second)
	})
	life(t, "outage of the store", func(t *testing.T, m *memory, a, b *instance) {
		r := a.open()
		m.setDown(errors.New("down"))
		time.Sleep(time.Second)
		r.End()
		b.open()
		time.Sleep(time.Minute)
		if len(a.options.Conditions.Conditions()) != 1 {
			t.Errorf("%+v", a.options.Conditions.Conditions())
		}
		m.setDown(nil)
		time.Sleep(later)
		if all := m.states(); slices.Contains(all, "removed") ||
			all[len(all)-1] != "connected to "+b.instance {
			t.Errorf("states: %q", all)
		}
		if len(a.options.Conditions.Conditions()) != 0 {
			t.Errorf("%+v", a.options.Conditions.Conditions())
		}
	})
	life(t, "forbidden removal", func(t *testing.T, m *memory, a, b *instance) {
		m.mu.Lock()
		m.denied = errors.New("forbidden")
		m.mu.Unlock()
		a.open().End()
		time.Sleep(2 * time.Minute)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.deletes < 2 || m.deletes > 2*12 {
			t.Errorf("%d attempts of two servers", m.deletes)
		}
		if len(b.options.Conditions.Conditions()) != 1 {
			t.Error("no condition")
		}
		m.denied = nil
	})
	life(t, "refused after an outage", func(t *testing.T, m *memory, a, _ *instance) {
		m.setDown(errors.New("down"))
		r := a.open()
		m.mu.Lock()
		m.groups = nil
		m.mu.Unlock()
		m.setDown(nil)
		if err := <-r.Refused(); status.Code(err) != codes.FailedPrecondition {
			t.Error(err)
		}
	})
	life(t, "foreign removal", func(t *testing.T, m *memory, a, _ *instance) {
		a.open()
		time.Sleep(2 * lag)
		if err := m.Delete(context.Background(), m.entry()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * lag)
		m.check(t, "connected to "+a.instance, "removed", "connected to "+a.instance)
	})
	life(t, "istiod", func(t *testing.T, m *memory, a, _ *instance) {
		// An entry whose controller is an istiod with a clock that is an hour ahead.
		c := Connection{Controller: "istiod-1", ConnectedAt: time.Now().Add(time.Hour)}
		m.mu.Lock()
		m.put(WorkloadEntry{Key: webKey, Group: "web", Connection: c})
		m.mu.Unlock()
		time.Sleep(later) // the servers do not remove it: istiod has no lease that could expire
		r := a.open()
		if at := m.entry().ConnectedAt; !at.After(c.ConnectedAt) {
			t.Errorf("connected at %v, before at %v", at, c.ConnectedAt)
		}
		if err := m.SetConnection(context.Background(), m.entry(), c); err != nil {
			t.Fatal(err)
		}
		r.End() // istiod has become the controller again, so the entry remains connected
		time.Sleep(later)
		c = Connection{Controller: "istiod-1", DisconnectedAt: time.Now().Add(-time.Hour)}
		if err := m.SetConnection(context.Background(), m.entry(), c); err != nil {
			t.Fatal(err)
		}
		if took := m.removedAfter(t, grace+2*time.Second); took < grace {
			t.Errorf("removed after %v", took)
		}
	})
	life(t, "start", func(t *testing.T, m *memory, a, b *instance) {
		a.open()
		a.kill()
		b.kill()
		c := launch(t, m)
		time.Sleep(later)
		c.StartServing()
		time.Sleep(grace - time.Second)
		if m.entry() == nil {
			t.Fatal("removed before the workload could connect")
		}
		m.removedAfter(t, 3*time.Second)
	})
}

// A server that was stopped for a minute removes no entries of other servers: it has not observed
// the renewals of their leases in that time.
func TestServer_AfterItWasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		a := serving(t, m)
		defer a.stop()
		time.Sleep(time.Second)
		a.open()
		time.Sleep(time.Second)
		s := New(Options{Store: m, GracePeriod: grace, Conditions: condition.NewRegistry(),
			Logger: slog.New(slog.DiscardHandler)})
		s.StartServing()
		read := func(now time.Time) {
			all, err := s.renewLease(t.Context())
			s.leases.update(all, err, false, now)
		}
		now := time.Now()
		read(now)
		now = now.Add(time.Minute)
		s.reconcile(t.Context(), now)
		read(now)
		s.reconcile(t.Context(), now)
		m.check(t, "connected to "+a.instance)
	})
}

// One reconciliation removes only maxJobs of a dead server's many entries, so that it does not
// delay workloads with streams.
func TestServer_RemovesInTurns(t *testing.T) {
	s := New(Options{})
	now := time.Now()
	var entries []*WorkloadEntry
	for i := range 3 * maxJobs {
		entries = append(entries, &WorkloadEntry{Key: Key{"vm", fmt.Sprint(i)},
			Connection: Connection{Controller: "dead", ConnectedAt: now}})
	}
	jobs := s.due(entries, map[string]time.Time{"dead": now}, now)
	if len(jobs) != maxJobs || len(s.wake) != 1 {
		t.Errorf("%d writes, %d signals for the next", len(jobs), len(s.wake))
	}
}

// check compares the sequence of states of the entry with the expected one.
func (m *memory) check(t *testing.T, want ...string) {
	t.Helper()
	if got := m.states(); !slices.Equal(got, want) {
		t.Errorf("states: %q, want %q", got, want)
	}
}

func TestServer_Refuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := serving(t, m)
		defer s.stop()
		time.Sleep(time.Second)
		register := func(identity, address string) error {
			_, err := s.Register(context.Background(), xds.Peer{Identity: identity}, nodeOf(address))
			return err
		}
		m.mu.Lock()
		m.put(WorkloadEntry{Key: Key{"vm", "web-10.0.0.9"}})
		m.mu.Unlock()
		for _, c := range []struct {
			identity, address, want string
		}{
			{"", "10.0.0.1", "registration needs an identity"},
			{"spiffe://cluster.local/ns/other/sa/web", "10.0.0.1", "must not register in namespace vm"},
			{"spiffe://cluster.local/ns/vm/sa/other", "10.0.0.1", `is of service account "web"`},
			{webID, "10.0.0.9", "exists, but nobody registered it"},
			{webID, "10.0.0.1%eth0", "has an IP address"},
		} {
			if err := register(c.identity, c.address); err == nil ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v", c, err)
			}
		}
		if refused := s.counters.refused.Load(); refused != 5 || m.entry() != nil {
			t.Errorf("%d refused, entry %+v", refused, m.entry())
		}
		time.Sleep(2 * lag)
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.hosts)+len(s.owned) > 0 {
			t.Errorf("refused workloads remain: %v %v", s.hosts, s.owned)
		}
		s.owned[webID] = maxPerIdentity
		s.mu.Unlock()
		err := register(webID, "10.0.0.1")
		s.mu.Lock()
		if status.Code(err) != codes.ResourceExhausted {
			t.Error(err)
		}
	})
}
