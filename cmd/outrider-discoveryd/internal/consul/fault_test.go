package consul

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// fake is an HTTP server that answers like a Consul with one service, and with an index that the
// test sets.
type fake struct {
	leader atomic.Bool
	code   atomic.Int32
	entry  atomic.Value // the service, of type map[string]any
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if code := f.code.Load(); code != 0 {
		w.WriteHeader(int(code))
		return
	}
	if r.URL.Query().Get("index") != "" {
		<-r.Context().Done()
		return
	}
	w.Header().Set("X-Consul-Index", "7")
	w.Header().Set("X-Consul-LastContact", "0")
	w.Header().Set("X-Consul-KnownLeader", strconv.FormatBool(f.leader.Load()))
	var body any = []any{}
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/catalog/services"):
		body = map[string][]string{"web": {}}
	case strings.HasPrefix(r.URL.Path, "/v1/health/service/"):
		body = []any{map[string]any{"Node": map[string]any{"Node": "n", "Address": "10.0.0.1",
			"Datacenter": "dc1"}, "Service": f.entry.Load()}}
	}
	_ = json.NewEncoder(w).Encode(body)
}

// TestRegistry_RefusesOutdatedAnswers causes faults that a Consul with a single server does not
// have.
func TestRegistry_RefusesOutdatedAnswers(t *testing.T) {
	t.Parallel()
	f := &fake{}
	f.entry.Store(map[string]any{"Service": "web", "Port": 80, "Namespace": "team-a",
		"Weights": map[string]any{"Passing": 1}})
	f.code.Store(http.StatusTooManyRequests)
	server := httptest.NewServer(f)
	t.Cleanup(server.Close) // runs after the registry has ended
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
		{"127.0.0.1:8500", "", "is no address of Consul"},
		{"ftp://127.0.0.1", "", "is no address of Consul"},
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
