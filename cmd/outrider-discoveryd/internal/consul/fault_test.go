package consul

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// fake is an HTTP server that responds as Consul does. All services have the same instance. The
// test changes the index, the faults and the list of services.
type fake struct {
	leader atomic.Bool
	code   atomic.Int32
	entry  atomic.Value // the instance of each service, of type map[string]any
	names  atomic.Value // the services with their tags, of type map[string][]string; nil: only web
	fault  atomic.Value // string: a fault of the responses

	mu    sync.Mutex
	index int
	newer chan struct{} // closed when index changes
}

func newFake() *fake { return &fake{index: 7, newer: make(chan struct{})} }

// change increments the index, which ends blocking queries.
func (f *fake) change() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	close(f.newer)
	f.newer = make(chan struct{})
}

// current returns the index, and a channel that is closed when the index changes.
func (f *fake) current() (string, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strconv.Itoa(f.index), f.newer
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	index, newer := f.current()
	if r.URL.Query().Get("index") == index {
		select {
		case <-r.Context().Done():
			return
		case <-newer:
			index, _ = f.current()
		}
	}
	if code := f.code.Load(); code != 0 {
		w.WriteHeader(int(code))
		return
	}
	w.Header().Set("X-Consul-Index", index)
	w.Header().Set("X-Consul-LastContact", "0")
	w.Header().Set("X-Consul-KnownLeader", strconv.FormatBool(f.leader.Load()))
	var body any = []any{}
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/catalog/services"):
		body = map[string][]string{"web": {}}
		if names := f.names.Load(); names != nil {
			body = names
		}
	case strings.HasPrefix(r.URL.Path, "/v1/health/service/"):
		body = []any{map[string]any{"Node": map[string]any{"Node": "n", "Address": "10.0.0.1",
			"Datacenter": "dc1"}, "Service": f.entry.Load()}}
	}
	switch f.fault.Load() {
	case "slow":
		<-r.Context().Done()
	case "cut off":
		text, _ := json.Marshal(body)
		w.Header().Set("Content-Length", strconv.Itoa(len(text)+1))
		_, _ = w.Write(text[:1])
		panic(http.ErrAbortHandler)
	default:
		_ = json.NewEncoder(w).Encode(body)
	}
}

// TestRegistry_KeepsStateOverFaults causes faults of Consul one after the other. The registry
// retains the three services that it has delivered, and reports the beginning and the end of each
// fault.
func TestRegistry_KeepsStateOverFaults(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.leader.Store(true)
	f.entry.Store(map[string]any{"Service": "x", "Port": 80,
		"Weights": map[string]any{"Passing": 1}})
	services := func(names ...string) map[string][]string {
		all := map[string][]string{}
		for _, name := range names {
			all[name] = []string{}
		}
		return all
	}
	f.names.Store(services("api", "mail", "web"))
	server := httptest.NewServer(f)
	t.Cleanup(server.Close) // cleanups run in reverse order: the registry ends first
	s := start(t, Options{Address: server.URL}, func(r *Registry) {
		r.client.timeout = 200 * time.Millisecond
	})
	s.awaitSynced()
	const all = "consul:api consul:mail consul:web"
	unchanged := func(fault string) {
		t.Helper()
		if got := s.paths(); got != all {
			t.Errorf("%s: services %s", fault, got)
		}
	}
	unchanged("start")
	for _, test := range []struct {
		fault, err, problem string
		begin               func()
	}{
		{"slow", "deadline exceeded", "", func() { f.fault.Store("slow") }},
		{"cut off", "consul closed the connection", "", func() { f.fault.Store("cut off") }},
		{"token revoked", "consul refuses the token (403)", "",
			func() { f.code.Store(http.StatusForbidden) }},
		{"no leader", "consul has no leader", "", func() { f.leader.Store(false) }},
		{"empty list", "", "Consul has lost 3 of 3 services",
			func() { f.names.Store(services()) }},
		{"half a list", "", "Consul has lost 2 of 3 services",
			func() { f.names.Store(services("web")) }},
	} {
		batches := s.UpdateCount()
		// Only after a failed query does a list that lacks most services count as a loss of data.
		// Without a failure it would remove them.
		f.code.Store(http.StatusServiceUnavailable)
		f.change()
		parts.Eventually(t, limit, "the names cannot be read", func() bool {
			h := &s.registry.watchers[0].health
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.errors[ofNames] != nil
		})
		test.begin()
		f.code.CompareAndSwap(http.StatusServiceUnavailable, 0)
		if test.err != "" {
			s.awaitError(test.err)
		} else {
			parts.EventuallyWithObservation(t, limit, test.fault, func() (bool, string) {
				return strings.HasPrefix(s.problem(), test.problem), s.problem()
			})
		}
		unchanged(test.fault)
		if n := s.UpdateCount() - batches; n != 0 {
			t.Errorf("%s: %d batches", test.fault, n)
		}
		f.fault.Store("")
		f.code.Store(0)
		f.leader.Store(true)
		f.names.Store(services("api", "mail", "web"))
		f.change()
		s.awaitError("")
		s.await("problem", "", s.problem)
		unchanged("after " + test.fault)
	}
	// After all faults, the registry still receives changes.
	f.names.Store(services("api", "mail", "new", "web"))
	f.change()
	s.await("services", "consul:api consul:mail consul:new consul:web", s.paths)
}

// TestRegistry_RefusesOutdatedAnswers: the registry accepts no response of a Consul without a
// leader, and no services of a namespace of Consul Enterprise.
func TestRegistry_RefusesOutdatedAnswers(t *testing.T) {
	t.Parallel()
	f := newFake()
	f.entry.Store(map[string]any{"Service": "web", "Port": 80, "Namespace": "team-a",
		"Weights": map[string]any{"Passing": 1}})
	f.code.Store(http.StatusTooManyRequests)
	server := httptest.NewServer(f)
	t.Cleanup(server.Close) // cleanups run in reverse order: the registry ends first
	s := start(t, Options{Address: server.URL})
	s.awaitError("consul answers 429")
	f.code.Store(0)
	s.awaitError("consul has no leader")
	if s.registry.Status().Synced {
		t.Error("synchronised without a leader")
	}
	f.leader.Store(true)
	s.awaitSynced()
	if s.paths() != "" {
		t.Errorf("services of another namespace: %s", s.paths())
	}
	s.await("problem", `service web: namespace "team-a", partition "": those of Consul `+
		`Enterprise are not supported`, s.problem)
}

func TestNew_Refuses(t *testing.T) {
	for _, test := range []struct{ address, variable, want string }{
		{"127.0.0.1:8500", "", "is not an address of Consul"},
		{"ftp://127.0.0.1", "", "is not an address of Consul"},
		{"http://127.0.0.1:8500", "CONSUL_NAMESPACE", "CONSUL_NAMESPACE=x: namespaces and"},
		{"http://127.0.0.1:8500", "CONSUL_PARTITION", "are not supported"},
	} {
		if test.variable != "" {
			t.Setenv(test.variable, "x")
		}
		if _, err := New(Options{Address: test.address}); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}
