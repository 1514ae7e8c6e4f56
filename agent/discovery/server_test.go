package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

const (
	webEntry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: grpc, protocol: GRPC}]
  endpoints: [{address: %[2]s, labels: {version: v1}}]
`
	webRule = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: shop}
spec: {host: %[1]s.test, subsets: [{name: v1, labels: {version: v1}}], trafficPolicy: {loadBalancer: {simple: %[2]s}}}
`
	webRoute = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: shop}
spec: {hosts: [%[1]s.test], http: [{timeout: %[2]s, route: [{destination: {host: web.test, subset: v1, port: {number: 80}}}]}]}
`
)

// TestPublish_ChangesOnly checks which resources each kind of change sends.
func TestPublish_ChangesOnly(t *testing.T) {
	directory := t.TempDir()
	put := func(name, text string, values ...any) string {
		path := filepath.Join(directory, name+".yaml")
		write(t, path, fmt.Sprintf(text, values...))
		return path
	}
	put("web", webEntry, "web", "10.0.0.1")
	put("other", webEntry, "other", "10.0.0.2")
	put("rule", webRule, "web", "RANDOM")
	put("route", webRoute, "other", "1s")
	server, changes := start(t, discovery.Options{Files: []string{directory}})
	feed := feedOf(t, server, "sidecar")
	if shared := feedOf(t, server, "sidecar"); shared != feed {
		t.Error("two proxies that are alike have a feed each")
	}
	for _, test := range []struct {
		name string
		path func() string
		want []string
	}{
		{"an endpoint", func() string { return put("web", webEntry, "web", "10.0.0.9") }, []string{
			"ClusterLoadAssignment outbound|80|v1|web.test",
			"ClusterLoadAssignment outbound|80||web.test",
			"ClusterLoadAssignment outbound|9000|v1|web.test",
			"ClusterLoadAssignment outbound|9000||web.test"}},
		{"a policy", func() string { return put("rule", webRule, "web", "ROUND_ROBIN") }, []string{
			"Cluster outbound|80|v1|web.test", "Cluster outbound|80||web.test",
			"Cluster outbound|9000|v1|web.test", "Cluster outbound|9000||web.test"}},
		{"a route", func() string { return put("route", webRoute, "other", "2s") },
			[]string{"RouteConfiguration 80", "RouteConfiguration 9000"}},
		{"a comment", func() string { return put("route", webRoute+"# harmless\n", "other", "2s") },
			nil},
		{"a bad object", func() string {
			return put("web", strings.Replace(webEntry, "STATIC", "STATISCH", 1), "web", "10.0.0.9")
		}, nil},
		{"an object that goes", func() string {
			path := filepath.Join(directory, "rule.yaml")
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			return path
		}, []string{"Cluster outbound|80|v1|web.test", "Cluster outbound|80||web.test",
			"Cluster outbound|9000|v1|web.test", "Cluster outbound|9000||web.test",
			"ClusterLoadAssignment outbound|80|v1|web.test",
			"ClusterLoadAssignment outbound|9000|v1|web.test"}},
	} {
		before, _ := feed.Current()
		changes <- []string{test.path()}
		changes <- nil // the server receives this once it has processed the previous change
		keys, ok := feed.ChangedSince(before.Sequence)
		if !ok {
			t.Fatal("the feed forgot")
		}
		var got []string
		for _, key := range keys {
			got = append(got, key.Type[strings.LastIndexByte(key.Type, '.')+1:]+" "+key.Name)
		}
		slices.Sort(got)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestWorkloadEntry_IsEndpoint changes WorkloadEntries: only the endpoints of the services that
// select them change.
func TestWorkloadEntry_IsEndpoint(t *testing.T) {
	directory := t.TempDir()
	entry := func(name, selector string) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: "+
			"{name: %s, namespace: shop}\nspec:\n  hosts: [%s.test]\n"+
			"  resolution: STATIC\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  "+
			"workloadSelector: {labels: {%s}}\n---\n", name, name, selector)
	}
	workload := func(labels string) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: "+
			"{name: vm, namespace: shop, labels: {%s}}\nspec: {address: 10.0.0.1}\n", labels)
	}
	write(t, filepath.Join(directory, "services.yaml"), entry("a", "app: a")+entry("b",
		"app: b")+entry("both", "tier: web"))
	path := filepath.Join(directory, "vm.yaml")
	write(t, path, workload("app: a, tier: web"))
	server, changes := start(t, discovery.Options{Files: []string{directory}})
	feed := feedOf(t, server, "sidecar")
	for _, test := range []struct {
		name, labels string
		want         []string
	}{
		{"it moves to another service", "app: b, tier: web", []string{"outbound|80||a.test",
			"outbound|80||b.test"}},
		{"another label changes", "app: b, tier: web, version: v2", nil},
		{"it leaves all", "app: c", []string{"outbound|80||b.test", "outbound|80||both.test"}},
	} {
		before, _ := feed.Current()
		write(t, path, workload(test.labels))
		changes <- []string{path}
		changes <- nil // the server receives this once it has processed the previous change
		keys, _ := feed.ChangedSince(before.Sequence)
		var got []string
		for _, key := range keys {
			if key.Type != resource.EndpointType {
				t.Errorf("%s: %s %s changed too", test.name, key.Type, key.Name)
			}
			got = append(got, key.Name)
		}
		slices.Sort(got)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestRefused_ReportsProblems configures a Gateway whose certificate file does not exist. That is
// reported, its listener accepts connections nevertheless, and other listeners are not delayed.
func TestRefused_ReportsProblems(t *testing.T) {
	directory := t.TempDir()
	certificate, key := certificate(t)
	gateway := func(port int, certificate string) string {
		return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec:
  servers:
  - {port: {number: %d, name: https, protocol: HTTPS}, hosts: ["*"], tls: {mode: SIMPLE, serverCertificate: %s, privateKey: %s}}
`, port, certificate, key)
	}
	path, port := filepath.Join(directory, "gw.yaml"), parts.FreePort(t)
	write(t, path, gateway(port, certificate+".missing"))
	write(t, filepath.Join(directory, "good.yaml"),
		fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: good, "+
			"namespace: shop}\n"+
			"spec: {servers: [{port: {number: %d, name: http, protocol: HTTP}, hosts: ['*']}]}\n",
			parts.FreePort(t)))
	board := condition.NewRegistry()
	server, changes := start(t, discovery.Options{Files: []string{directory}, Conditions: board})
	e := startEnvoy(t, "router", server)
	eventually(t, "the refusal is reported", func() (bool, string) {
		problems := server.Problems()
		if len(problems) != 1 {
			return false, fmt.Sprint(problems)
		}
		p := problems[0]
		return p.File == path && p.Line == 1 && p.Object == "Gateway shop/gw" &&
			strings.Contains(p.Message, "cert.pem.missing"), p.String()
	})
	if conditions := board.Conditions(); len(conditions) != 1 ||
		conditions[0].Code != "mesh-problems" || conditions[0].Severity != condition.Error {
		t.Errorf("conditions %v", conditions)
	}
	eventually(t, "the rest goes through", func() (bool, string) {
		n := e.Stat("listener_manager.total_listeners_active")
		return n == 2, fmt.Sprint(n)
	})
	write(t, path, gateway(port, certificate))
	changes <- []string{path}
	eventually(t, "the cure is taken", func() (bool, string) {
		n := e.Stat("listener_manager.listener_modified")
		return n == 1 && len(server.Problems()) == 0 && len(board.Conditions()) == 0, fmt.Sprint(n,
			server.Problems())
	})
}

func TestProblems_ReportedOnceAndBounded(t *testing.T) {
	directory := t.TempDir()
	for i := range 50 {
		write(t, filepath.Join(directory, fmt.Sprintf("%02d.yaml", i)), "a: [")
	}
	board := condition.NewRegistry()
	server, changes := start(t, discovery.Options{Files: []string{directory}, Conditions: board})
	if got := len(server.Problems()); got != 50 {
		t.Errorf("%d problems", got)
	}
	count := func() (n int) {
		for _, e := range board.Events(0) {
			if e.Kind == condition.KindMeshProblem {
				n++
			}
		}
		return n
	}
	if got := count(); got != 21 {
		t.Errorf("%d events", got)
	}
	changes <- []string{directory}
	changes <- nil
	if got := count(); got != 21 {
		t.Errorf("%d events after nothing new", got)
	}
	for _, unused := range []bool{true, false} {
		err := server.Configure(discovery.Settings{ServesNoEnvoy: unused})
		if got := board.Conditions(); err != nil || len(got) > 0 == unused ||
			len(server.Problems()) != 50 {
			t.Errorf("unused %v: %v, %d problems, %v", unused, got, len(server.Problems()), err)
		}
	}
	for i := range 50 {
		if err := os.Remove(filepath.Join(directory, fmt.Sprintf("%02d.yaml", i))); err != nil {
			t.Fatal(err)
		}
	}
	changes <- []string{directory}
	changes <- nil
	if got := board.Conditions(); len(got) != 0 {
		t.Errorf("conditions %v", got)
	}
}

func TestDebounce_MergesChanges(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "a.yaml")
	synctest.Test(t, func(t *testing.T) {
		server, changes := start(t, discovery.Options{Files: []string{directory},
			Settings: discovery.Settings{DebounceAfter: 100 * time.Millisecond,
				DebounceMax: time.Second}})
		feed := feedOf(t, server, "sidecar")
		pushes := func(quiet time.Duration, times int) (uint64, time.Duration) {
			before, next := feed.Current()
			started := time.Now()
			var first time.Duration
			done := make(chan struct{})
			go func() { defer close(done); <-next; first = time.Since(started) }()
			for i := range times {
				write(t, path, fmt.Sprintf(webEntry, "web", fmt.Sprintf("10.0.%d.%d", times, i)))
				changes <- []string{path}
				time.Sleep(quiet)
			}
			<-done
			time.Sleep(2 * time.Second)
			after, _ := feed.Current()
			return after.Sequence - before.Sequence, first
		}
		if n, first := pushes(50*time.Millisecond, 5); n != 1 || first != 300*time.Millisecond {
			t.Errorf("five changes in quick succession: %d pushes, the first after %v", n, first)
		}
		if n, first := pushes(50*time.Millisecond, 30); n != 2 || first != time.Second {
			t.Errorf("a flood: %d pushes, the first after %v", n, first)
		}
	})
}
