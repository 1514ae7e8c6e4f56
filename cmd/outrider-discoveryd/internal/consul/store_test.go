package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/registration"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/catalog"
)

var webGroup = &registration.WorkloadGroup{Key: registration.Key{Namespace: "vm", Name: "web"},
	Spec: &networking.WorkloadGroup{Metadata: &networking.WorkloadGroup_ObjectMeta{
		Labels: map[string]string{"app": "shop"}}}}

// webWorkload returns a workload of the WorkloadGroup web.
func webWorkload(address string) *registration.Workload {
	return &registration.Workload{
		Key:   registration.Key{Namespace: "vm", Name: "web-" + address},
		Group: webGroup,
		Spec: &networking.WorkloadEntry{Address: address, ServiceAccount: "web", Weight: 3,
			Locality: "eu/a", Network: "net1", Ports: map[string]uint32{"tcp": 8081, "http": 8080},
			Labels: map[string]string{"app": "shop", "example.com/team": "a"}},
		Annotations: map[string]string{"proxy.istio.io/health-checks-enabled": "true"},
	}
}

func connection(controller string, at time.Time) registration.Connection {
	return registration.Connection{Controller: controller, ConnectedAt: at}
}

// instances returns the instances of a service as Consul's HTTP API shows them: node, address,
// port, tags and status.
func instances(t *testing.T, consul *catalog.Consul, service string) string {
	t.Helper()
	var all []*api.ServiceEntry
	consul.Do(t, http.MethodGet, "/v1/health/service/"+service, nil, &all)
	var found []string
	for _, e := range all {
		found = append(found, fmt.Sprintf("%s %s:%d %v %s", e.Node.Node, e.Node.Address,
			e.Service.Port, e.Service.Tags, e.Checks.AggregatedStatus()))
	}
	slices.Sort(found)
	return strings.Join(found, "\n")
}

// A workload registers, reports its health, moves to another discovery server and leaves. The other
// server reads the same entry, and other programs see an ordinary service instance in Consul.
func TestStore_RegistersWorkloads(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	consul := catalog.Start(t, catalog.Options{})
	one, two := start(t, Options{Address: consul.Address}), start(t, Options{Address: consul.Address})
	a, b := NewStore(one.registry, nil), NewStore(two.registry, nil)
	one.awaitSynced()
	two.awaitSynced()
	web, at := webWorkload("10.0.0.1"), time.Now().Truncate(time.Millisecond)
	if e, err := a.Get(ctx, web.Key); e != nil || err != nil {
		t.Fatal(e, err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	conflicts := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, registration.ErrConflict) {
			t.Errorf("%s: %v", what, err)
		}
	}
	get := func() *registration.WorkloadEntry {
		t.Helper()
		e, err := b.Get(ctx, web.Key)
		if e == nil || err != nil {
			t.Fatal(e, err)
		}
		return e
	}
	must(a.Create(ctx, web, connection("a", at)))
	conflicts("a second Create", b.Create(ctx, web, connection("b", at)))
	first := get()
	want := &registration.WorkloadEntry{Key: web.Key, Version: first.Version, Group: "web",
		ServiceAccount: "web", Connection: connection("a", at)}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
	const path, tags = "consul:WorkloadEntry/vm/web-10.0.0.1",
		"[app=shop example.com/team=a topology.istio.io/network=net1]"
	const node = "outrider.vm.web-10.0.0.1 10.0.0.1:8080 " + tags
	for _, s := range []*sink{one, two} {
		s.await("the WorkloadEntry", "true", func() string {
			return fmt.Sprint(strings.Contains(s.Text(path), `"istio.io/workloadController":"a"`))
		})
		// The workload has not reported its health, so its service has no endpoint.
		s.await("services", path+" consul:shop consul:shop-tcp", s.paths)
		s.awaitAddresses("consul:shop", "")
	}
	if got := instances(t, consul, "shop"); got != node+" critical" {
		t.Errorf("other programs see %q", got)
	}

	must(a.SetHealth(ctx, first, registration.Health{Healthy: true, ReportedAt: at}))
	for _, s := range []*sink{one, two} {
		s.awaitAddresses("consul:shop", "10.0.0.1*3")
		s.awaitAddresses("consul:shop-tcp", "10.0.0.1*3")
		s.await("the health", "true", func() string {
			return fmt.Sprint(strings.Contains(s.Text(path), `"type":"Healthy","status":"True"`))
		})
	}
	entry := one.entry("consul:shop").Endpoints[0]
	if entry.ServiceAccount != "web" || entry.Labels["app"] != "shop" ||
		entry.Labels["istio-locality"] != "eu.a" || entry.Ports["http"] != 8080 {
		t.Errorf("the endpoint of the service is %v", entry)
	}
	if got := instances(t, consul, "shop"); got != node+" passing" {
		t.Errorf("other programs see %q", got)
	}

	late := start(t, Options{Address: consul.Address})
	late.awaitSynced()
	if got := late.paths(); got != one.paths() {
		t.Errorf("the first batch of a registry that starts now has %s", got)
	}

	conflicts("Connect of an old version", b.SetConnection(ctx, first, connection("b", at)))
	must(b.SetConnection(ctx, get(), connection("b", at.Add(time.Second))))
	conflicts("SetHealth of the server before", a.SetHealth(ctx, first, registration.Health{}))
	moved := get()
	if moved.Controller != "b" || moved.Health == nil || !moved.Health.Healthy {
		t.Errorf("after the move: %+v", moved)
	}
	must(b.SetHealth(ctx, moved, registration.Health{Message: "web.service is inactive", ReportedAt: at}))
	one.awaitAddresses("consul:shop", "")
	conflicts("Delete of an old version", b.Delete(ctx, moved))
	left := registration.Connection{Controller: "b", DisconnectedAt: at}
	must(b.SetConnection(ctx, get(), left))
	if got := get(); !cmp.Equal(got.Connection, left) || got.Health.Message != "web.service is inactive" {
		t.Errorf("after the end of the stream: %+v", got)
	}
	parts.Eventually(t, limit, "the other server knows the newest state", func() bool {
		all, err := a.Entries()
		return err == nil && len(all) == 1 && cmp.Equal(all[0].Connection, left)
	})
	must(b.Delete(ctx, get()))
	for _, s := range []*sink{one, two} {
		s.await("services", "", s.paths)
	}
	if got := instances(t, consul, "shop"); got != "" {
		t.Errorf("other programs see %q", got)
	}
	if err := b.Delete(ctx, moved); err != nil && !errors.Is(err, registration.ErrConflict) {
		t.Errorf("Delete of an entry that does not exist: %v", err)
	}
	conflicts("Connect of an entry that does not exist", b.SetConnection(ctx, moved, left))

	leases := func() map[string]string {
		t.Helper()
		all, err := b.LeaseVersions(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	must(a.RenewLease(ctx, "a", time.Second))
	before := leases()
	must(a.RenewLease(ctx, "a", time.Second))
	if after := leases(); len(after) != 1 || after["a"] == before["a"] {
		t.Errorf("leases before %v and after a renewal %v", before, after)
	}
	must(a.ReleaseLease(ctx, "a"))
	must(a.ReleaseLease(ctx, "a"))
	if after := leases(); len(after) != 0 {
		t.Errorf("leases after the release: %v", after)
	}
}

// Consul restarts without data. The registry retains the workloads, and they can be registered
// again.
func TestStore_SurvivesLossOfData(t *testing.T) {
	t.Parallel()
	consul := catalog.Start(t, catalog.Options{})
	s := start(t, Options{Address: consul.Address})
	store := NewStore(s.registry, nil)
	s.awaitSynced()
	web := webWorkload("10.0.0.1")
	web.Annotations = nil // without a health check, the workload is healthy at once
	register := func() {
		t.Helper()
		if err := store.Create(t.Context(), web, connection("a", time.Now())); err != nil {
			t.Fatal(err)
		}
	}
	register()
	const all = "consul:WorkloadEntry/vm/web-10.0.0.1 consul:shop consul:shop-tcp"
	s.await("services", all, s.paths)
	consul.Kill()
	s.awaitError("connect")
	if _, err := store.Entries(); err == nil {
		t.Error("the entries are known without Consul")
	}
	if err := store.RenewLease(t.Context(), "a", time.Second); err == nil {
		t.Error("a lease is renewed without Consul")
	}
	batches := s.UpdateCount()
	consul.Restart(t)
	parts.Eventually(t, limit, "the entries are known to be lost", func() bool {
		entries, err := store.Entries()
		return err == nil && len(entries) == 0
	})
	s.awaitError("")
	if s.paths() != all || s.UpdateCount() != batches {
		t.Errorf("%d batches, %s", s.UpdateCount()-batches, s.paths())
	}
	register()
	s.await("problem", "", s.problem)
	s.await("services", all, s.paths)
	s.awaitAddresses("consul:shop", "10.0.0.1*3")
}

// A token with the documented rights suffices to register workloads. A token with read rights only
// is refused.
func TestStore_NeedsRights(t *testing.T) {
	t.Parallel()
	consul := catalog.Start(t, catalog.Options{ACL: true})
	token := filepath.Join(t.TempDir(), "token")
	const read = `node_prefix "" { policy = "read" } service_prefix "" { policy = "read" }`
	reader := consul.CreateToken(t, read)
	write(t, token, reader)
	consul.Register(t, catalog.Instance{Service: "mail", Address: "10.0.0.2", Port: 25})
	s := start(t, Options{Address: consul.Address, TokenFile: token})
	s.awaitSynced() // without registration, the server needs no right to read keys
	store := NewStore(s.registry, nil)
	err := store.Create(t.Context(), webWorkload("10.0.0.1"), connection("a", time.Now()))
	if err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("without rights: %v", err)
	}
	if err := store.RenewLease(t.Context(), "a", time.Second); err == nil {
		t.Error("a lease without rights")
	}
	consul.Do(t, http.MethodPut, "/v1/acl/policy", map[string]any{"Name": "registration",
		"Rules": read + `key_prefix "outrider/registration/" { policy = "write" }
		node_prefix "outrider." { policy = "write" } service_prefix "" { policy = "write" }`}, nil)
	var created struct{ SecretID string }
	consul.Do(t, http.MethodPut, "/v1/acl/token", map[string]any{"Policies": []any{
		map[string]any{"Name": "registration"}}}, &created)
	write(t, token, created.SecretID)
	if err := store.Create(t.Context(), webWorkload("10.0.0.1"),
		connection("a", time.Now())); err != nil {
		t.Fatal(err)
	}
	if err := store.RenewLease(t.Context(), "a", time.Second); err != nil {
		t.Error(err)
	}
	const path = "consul:WorkloadEntry/vm/web-10.0.0.1"
	const all = path + " consul:mail consul:shop consul:shop-tcp"
	s.await("services", all, s.paths)

	// A token with fewer rights hides workloads, but does not remove them.
	write(t, token, reader)
	consul.Do(t, http.MethodPut, "/v1/kv/"+workloadKeys+"vm/other", "no WorkloadEntry", nil)
	s.await("problem", "the token may not read all registered workloads; permit read for "+
		"key_prefix "+workloadKeys, s.problem)
	if _, err := store.Entries(); s.paths() != all || err == nil {
		t.Errorf("services %s, error %v", s.paths(), err)
	}
	write(t, token, created.SecretID)
	e, err := store.Get(t.Context(), webWorkload("10.0.0.1").Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(t.Context(), e); err != nil {
		t.Error(err)
	}
}

// Workloads that are missing after an interruption, or after a loss of data in Consul, are removed
// after lostWait; others are removed at once. The type and the name of an entry come from its key,
// not from its value.
func TestWatcher_RemovesWorkloads(t *testing.T) {
	s := &sink{t: t}
	registry, err := New(Options{Name: "consul", Address: "http://127.0.0.1:1",
		Sink:   s.AcceptUpdate,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	registry.synced = true
	w := registry.watchers[0]
	now := time.Now()
	list := func(again, lost bool, names ...string) {
		found := answer[api.KVPairs]{again: again, lost: lost}
		for i, name := range names {
			found.value = append(found.value, &api.KVPair{Key: workloadKeys + name,
				ModifyIndex: uint64(i + 1), //nolint:gosec // small
				Value: []byte(`{"kind":"AuthorizationPolicy","metadata":{"name":"other"},` +
					`"spec":{"address":"10.0.0.1"}}`)})
		}
		w.setWorkloads(found, now)
	}
	expect := func(what string, names ...string) {
		t.Helper()
		var paths []string
		for _, name := range names {
			paths = append(paths, "consul:WorkloadEntry/"+name)
		}
		if got := s.Paths(); !slices.Equal(got, paths) {
			t.Errorf("%s: %v", what, got)
		}
	}
	list(true, false, "vm/a", "vm/b", "x", "vm/../y", "VM/c")
	expect("first list", "vm/a", "vm/b")
	if !strings.Contains(registry.Status().Problem,
		"x: the key does not end in NAMESPACE/NAME of a WorkloadEntry") {
		t.Errorf("problem %q", registry.Status().Problem)
	}
	if got := s.Text("consul:WorkloadEntry/vm/a"); !strings.Contains(got, `"WorkloadEntry"`) ||
		!strings.Contains(got, `"name":"a"`) || strings.Contains(got, "other") {
		t.Errorf("the value is %s", got)
	}
	list(false, false, "vm/a")
	expect("b has left", "vm/a")
	for _, test := range []struct{ again, lost bool }{{true, false}, {false, true}} {
		list(test.again, test.lost)
		expect("lost", "vm/a")
		list(false, false)
		if wait := w.removeLost(now.Add(lostWait - 1)); wait != 1 {
			t.Errorf("the wait is %v", wait)
		}
		expect("still lost", "vm/a")
		list(false, false, "vm/a")
		expect("registered again", "vm/a")
		if wait := w.removeLost(now.Add(2 * lostWait)); wait >= 0 {
			t.Errorf("the wait is %v", wait)
		}
		expect("registered again", "vm/a")
	}
	list(true, false)
	w.removeLost(now.Add(lostWait))
	expect("lost for too long")
	if entries, ok := w.workloads.all(); !ok || entries == nil || len(entries) > 0 {
		t.Errorf("entries %v", entries)
	}

	list(false, false, "vm/a")
	w.setWorkloads(answer[api.KVPairs]{filtered: true}, now)
	if wait := w.removeLost(now.Add(2 * lostWait)); wait >= 0 {
		t.Errorf("the wait is %v", wait)
	}
	expect("the token may not read it", "vm/a")
	if entries, _ := w.workloads.all(); entries != nil ||
		!strings.Contains(registry.Status().Problem, "may not read all registered workloads") {
		t.Errorf("entries %v, problem %q", entries, registry.Status().Problem)
	}
	list(false, false)
	w.removeLost(now.Add(lostWait))
	expect("the token may read, and it is gone")
}

func TestStore_ValuesAreBounded(t *testing.T) {
	registry, err := New(Options{Address: "http://127.0.0.1:1",
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	store := NewStore(registry, nil)
	large, named := webWorkload("10.0.0.1"), webWorkload("10.0.0.1")
	large.Annotations = map[string]string{"x": strings.Repeat("x", maxRequest)}
	named.Name = "a/b"
	for _, w := range []*registration.Workload{large, named} {
		err := store.Create(context.Background(), w, registration.Connection{})
		if !errors.Is(err, registration.ErrInvalid) {
			t.Errorf("%.40q: %v", w.Name, err)
		}
	}
}
