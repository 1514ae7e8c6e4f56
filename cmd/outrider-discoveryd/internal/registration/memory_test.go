package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/xds"
)

// memory is a Store in memory that can fail. As in a real store, Entries lags behind the writes.
type memory struct {
	mu      sync.Mutex
	entries map[Key]*WorkloadEntry
	list    []*WorkloadEntry // result of Entries
	groups  map[Key]*WorkloadGroup
	leases  map[string]string
	version int
	down    error // error of all methods
	denied  error // error of Delete
	deletes int   // number of calls of Delete
	history []string
}

func newMemory() *memory {
	group := &networking.WorkloadGroup{Template: &networking.WorkloadEntry{ServiceAccount: "web"}}
	return &memory{entries: map[Key]*WorkloadEntry{}, leases: map[string]string{},
		groups: map[Key]*WorkloadGroup{{"vm", "web"}: {Key: Key{"vm", "web"}, Spec: group}}}
}

func (m *memory) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		m.mu.Lock()
		m.list = nil
		for _, e := range m.entries {
			m.list = append(m.list, new(*e))
		}
		m.mu.Unlock()
		_ = backoff.Sleep(ctx, 100*time.Millisecond)
	}
	return nil
}

// writes returns the number of writes so far.
func (m *memory) writes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// states returns the sequence of states of all entries, without repetitions.
func (m *memory) states() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.history)
}

func (m *memory) setDown(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = err
}

func (m *memory) Group(_ context.Context, key Key) (*WorkloadGroup, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groups[key], m.down
}

func (m *memory) Get(_ context.Context, key Key) (*WorkloadEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.entries[key]; e != nil && m.down == nil {
		return new(*e), nil
	}
	return nil, m.down
}

func (m *memory) Entries() ([]*WorkloadEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list, m.down
}

// put stores an entry with a new version, and records its state in the history.
func (m *memory) put(e WorkloadEntry) {
	m.version++
	e.Version = fmt.Sprint(m.version)
	m.entries[e.Key] = &e
	state := "disconnected"
	if e.connected() {
		state = "connected to " + e.Controller
	}
	if n := len(m.history); n == 0 || m.history[n-1] != state {
		m.history = append(m.history, state)
	}
}

func (m *memory) Create(_ context.Context, w *Workload, c Connection) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down != nil {
		return m.down
	}
	if m.entries[w.Key] != nil {
		return ErrConflict
	}
	m.put(WorkloadEntry{Key: w.Key, Group: w.Group.Name, ServiceAccount: w.Spec.ServiceAccount,
		Connection: c})
	return nil
}

func (m *memory) change(e *WorkloadEntry, change func(*WorkloadEntry)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down != nil {
		return m.down
	}
	now := m.entries[e.Key]
	if now == nil || now.Version != e.Version {
		return ErrConflict
	}
	next := *now
	change(&next)
	m.put(next)
	return nil
}

func (m *memory) SetConnection(_ context.Context, e *WorkloadEntry, c Connection) error {
	return m.change(e, func(e *WorkloadEntry) { e.Connection = c })
}

func (m *memory) SetHealth(_ context.Context, e *WorkloadEntry, h Health) error {
	return m.change(e, func(e *WorkloadEntry) { e.Health = &h })
}

func (m *memory) Delete(_ context.Context, e *WorkloadEntry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.deletes++; m.denied != nil {
		return m.denied
	}
	if now := m.entries[e.Key]; now == nil || now.Version != e.Version {
		return ErrConflict
	}
	delete(m.entries, e.Key)
	m.history = append(m.history, "removed")
	return m.down
}

func (m *memory) RenewLease(_ context.Context, instance string, _ time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down == nil {
		m.version++
		m.leases[instance] = fmt.Sprint(m.version)
	}
	return m.down
}

func (m *memory) LeaseVersions(context.Context) (map[string]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]string{}
	for instance, mark := range m.leases {
		all[instance] = mark
	}
	return all, m.down
}

func (m *memory) ReleaseLease(_ context.Context, instance string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, instance)
	return m.down
}

// cuttable is a Store that refuses writes once cut is set, as if its server had been killed.
type cuttable struct {
	Store
	cut atomic.Bool
}

var errCut = errors.New("the process was killed")

func (c *cuttable) SetConnection(ctx context.Context, e *WorkloadEntry, to Connection) error {
	if c.cut.Load() {
		return errCut
	}
	return c.Store.SetConnection(ctx, e, to)
}

func (c *cuttable) Delete(ctx context.Context, e *WorkloadEntry) error {
	if c.cut.Load() {
		return errCut
	}
	return c.Store.Delete(ctx, e)
}

const grace = 10 * time.Second

// instance is a running Server. kill ends it without the writes of a regular stop; stop ends it
// regularly.
type instance struct {
	*Server
	t    *testing.T
	kill func()
	stop func()
}

// launch runs a Server that accepts no clients yet.
func launch(t *testing.T, store Store) *instance {
	t.Helper()
	c := &cuttable{Store: store}
	s := New(Options{Store: c, GracePeriod: grace, Conditions: condition.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	stop := sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	synctest.Wait()
	return &instance{s, t, func() { c.cut.Store(true); stop() }, stop}
}

func serving(t *testing.T, store Store) *instance {
	t.Helper()
	s := launch(t, store)
	s.StartServing()
	return s
}

const webID = "spiffe://cluster.local/ns/vm/sa/web"

var webKey = Key{"vm", "web-10.0.0.1"}

func nodeOf(address string) *corev3.Node {
	text := structpb.NewStringValue
	return &corev3.Node{Id: "sidecar~" + address + "~a~b", Metadata: &structpb.Struct{
		Fields: map[string]*structpb.Value{"NAMESPACE": text("vm"),
			"AUTO_REGISTER_GROUP": text("web"), "INSTANCE_IPS": text(address)}}}
}

// open opens a stream of the workload with the address 10.0.0.1.
func (s *instance) open() xds.Registration {
	s.t.Helper()
	r, err := s.Register(context.Background(), xds.Peer{Identity: webID}, nodeOf("10.0.0.1"))
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}
