package discovery_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// capturedAt returns the node of an intercepted proxy at an address.
func capturedAt(address string) *corev3.Node {
	n := node("sidecar", "shop", map[string]any{"app": "web"})
	n.Id = strings.Replace(n.Id, "127.0.0.1", address, 1)
	n.Metadata.Fields["INTERCEPTION_MODE"] = structpb.NewStringValue("REDIRECT")
	return n
}

// contentOf returns the versions of all resources of a feed, by name.
func contentOf(t *testing.T, feed *resource.Feed) string {
	t.Helper()
	snapshot, _ := feed.Current()
	var all []string
	for _, kind := range snapshot.Types() {
		for name, r := range snapshot.ByType(kind) {
			all = append(all, fmt.Sprint(resource.TypeName(kind), " ", name, " ", r.Version))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// proxyOfFleet is a connected proxy.
type proxyOfFleet struct {
	node  *corev3.Node
	moved chan struct{}
	find  func() (*resource.Feed, error)
	feed  *resource.Feed
}

// current returns the proxy's feed, which is another one if the proxy was moved.
func (p *proxyOfFleet) current(t *testing.T) *resource.Feed {
	t.Helper()
	select {
	case <-p.moved:
		var err error
		if p.feed, err = p.find(); err != nil {
			t.Fatal(err)
		}
	default:
	}
	return p.feed
}

// startShared is start for a FleetServer.
func startShared(tb testing.TB, options discovery.Options) (
	*discovery.FleetServer, chan<- []string) {
	tb.Helper()
	server, changes := newServer(tb, options)
	shared := discovery.NewFleetServer(server)
	runServer(tb, server)
	return shared, changes
}

func subscribe(t *testing.T, server *discovery.FleetServer, identity string,
	node *corev3.Node) (*proxyOfFleet, func(), error) {
	t.Helper()
	p := &proxyOfFleet{node: node, moved: make(chan struct{}, 1)}
	find, end := server.Subscribe(node, identity, func() {
		select {
		case p.moved <- struct{}{}:
		default:
		}
	})
	var err error
	p.find = find
	p.feed, err = find()
	return p, end, err
}

// TestShared_CapturedHosts: intercepted proxies on hosts that serve the same ports share a view.
// After each change, every proxy gets the same resources as from a server with a view for each
// address.
func TestShared_CapturedHosts(t *testing.T) {
	service := func(name, more string, endpoints ...string) string {
		text := ""
		for _, e := range endpoints {
			text += fmt.Sprintf("{address: %s, labels: {app: web}}, ", e)
		}
		return fmt.Sprintf("ServiceEntry shop/%[1]s: {hosts: [%[1]s.test], resolution: STATIC, %[2]s, "+
			"endpoints: [%[3]s]}", name, more, text)
	}
	const http = "ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]"
	const tcp = "ports: [{number: 90, name: tcp, protocol: TCP}]"
	steps := []struct {
		name    string
		objects []string
		views   int
	}{
		{"no service", nil, 1},
		{"two services of one port", []string{service("a", http, "10.0.0.1", "10.0.0.2"),
			service("b", http, "10.0.0.3")}, 2},
		{"one more port", []string{service("a", http, "10.0.0.1", "10.0.0.2"),
			service("b", http, "10.0.0.3"), service("c", tcp, "10.0.0.2", "10.0.0.3")}, 3},
		{"another protocol", []string{service("a", http, "10.0.0.1", "10.0.0.2"),
			service("b", tcp, "10.0.0.3"), service("c", tcp, "10.0.0.2", "10.0.0.3")}, 4},
		{"an endpoint moves", []string{service("a", http, "10.0.0.4", "10.0.0.2"),
			service("b", tcp, "10.0.0.3"), service("c", tcp, "10.0.0.2", "10.0.0.3")}, 4},
		{"limits of connections", []string{service("a", http, "10.0.0.4", "10.0.0.2"),
			service("b", tcp, "10.0.0.3"), service("c", tcp, "10.0.0.2", "10.0.0.3"),
			"DestinationRule shop/d: {host: a.test, trafficPolicy: {connectionPool: " +
				"{tcp: {maxConnections: 7}}}}"}, 6},
		{"an ingress with addresses", []string{service("a", http, "10.0.0.4", "10.0.0.2"),
			"Sidecar shop/default: {ingress: [{port: {number: 9000, protocol: HTTP, name: own}, " +
				"defaultEndpoint: '0.0.0.0:9001'}]}"}, 10},
		{"none any more", nil, 10},
		{"two ports with one on the host", []string{service("a", "ports: [{number: 91, name: tcp, "+
			"protocol: TCP, targetPort: 8080}, {number: 80, name: http, protocol: HTTP, targetPort: "+
			"8080}]", "10.0.0.1", "10.0.0.2")}, 11},
		{"no service again", nil, 11},
		{"services again", []string{service("a", http, "10.0.0.1"), service("b", http, "10.0.0.3")}, 11},
		{"metrics name the service", []string{service("a", http, "10.0.0.1"),
			service("b", http, "10.0.0.3"),
			"Telemetry shop/t: {metrics: [{providers: [{name: prometheus}]}]}"}, 13},
	}
	shared, own := t.TempDir(), t.TempDir()
	fleet, changes := startShared(t, discovery.Options{Files: []string{shared}})
	alone, changesAlone := start(t, discovery.Options{Files: []string{own},
		SeparateViewsByAddress: true})
	var proxies []*proxyOfFleet
	for i := range 4 {
		p, end, err := subscribe(t, fleet, "", capturedAt(fmt.Sprintf("10.0.0.%d", i+1)))
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		proxies = append(proxies, p)
	}
	for _, step := range steps {
		text := ""
		for _, o := range step.objects {
			head, spec, _ := strings.Cut(o, ": ")
			kind, key, _ := strings.Cut(head, " ")
			namespace, name, _ := strings.Cut(key, "/")
			group := "networking"
			if kind == "Telemetry" {
				group = "telemetry"
			}
			text += fmt.Sprintf("---\napiVersion: %s.istio.io/v1\nkind: %s\nmetadata: {name: %s, "+
				"namespace: %s}\nspec: %s\n", group, kind, name, namespace, spec)
		}
		for directory, to := range map[string]chan<- []string{shared: changes, own: changesAlone} {
			path := filepath.Join(directory, "mesh.yaml")
			write(t, path, text)
			to <- []string{path}
			to <- nil // the server receives this once it has processed the previous change
		}
		for i, p := range proxies {
			want, err := alone.Feed(p.node)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := contentOf(t, p.current(t)), contentOf(t, want); got != want {
				t.Errorf("%s: proxy %d has\n%s\nwant\n%s", step.name, i, got, want)
			}
			again, err := fleet.Feed(p.node)
			if err != nil || again != p.feed {
				t.Errorf("%s: proxy %d was not moved: %v", step.name, i, err)
			}
		}
		if got := fleet.Stats().Views; got != step.views {
			t.Errorf("%s: %d views, want %d", step.name, got, step.views)
		}
	}
}

// TestShared_ViewsOfOneIdentity: a client that subscribes with ever new nodes is refused beyond
// MaxViewsPerIdentity. A client with another identity still gets its resources and their changes.
func TestShared_ViewsOfOneIdentity(t *testing.T) {
	directory := t.TempDir()
	path := filepath.Join(directory, "web.yaml")
	write(t, path, fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	server, changes := startShared(t, discovery.Options{Files: []string{directory}, MaxViews: 10,
		MaxViewsPerIdentity: 4})
	labelled := func(i int) *corev3.Node {
		return node("sidecar", "shop", map[string]any{"invented": fmt.Sprint(i)})
	}
	refused := 0
	for i := range 100 {
		p, end, err := subscribe(t, server, "spiffe://a", labelled(i))
		defer end()
		if err != nil {
			refused++
			if !strings.Contains(err.Error(), "spiffe://a") {
				t.Fatal(err)
			}
			continue
		}
		leave := p.feed.AddWatcher()
		defer leave()
	}
	if refused != 96 {
		t.Errorf("%d of 100 were refused", refused)
	}
	// The second identity subscribes with five kinds of nodes. The first identity also uses one of
	// these kinds, so only the other four count against the second identity's limit of four.
	for i := range 5 {
		p, end, err := subscribe(t, server, "spiffe://b", labelled(i*i*i+3))
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		leave := p.feed.AddWatcher()
		defer leave()
		_, newer := p.feed.Current()
		write(t, path, fmt.Sprintf(webEntry, "web", fmt.Sprintf("10.0.0.%d", i+2)))
		changes <- []string{path}
		<-newer
	}
	if _, end, err := subscribe(t, server, "spiffe://b", labelled(99)); err == nil {
		t.Error("a fifth kind of four")
	} else {
		end()
	}
	if views := server.Stats().Views; views != 8 {
		t.Errorf("%d views", views)
	}
}

// TestShared_NobodyMovesWhileNothingIsServed changes the ports of a host while the server withholds
// all resources. The proxy retains its resources, and gets another view once resources are served:
// a new view would have none before.
func TestShared_NobodyMovesWhileNothingIsServed(t *testing.T) {
	directory, config := t.TempDir(), filepath.Join(t.TempDir(), "mesh.yaml")
	service, policy := filepath.Join(directory, "a.yaml"), filepath.Join(directory, "policy.yaml")
	served := func(address string) {
		write(t, service, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n"+
			"metadata: {name: a, namespace: shop}\nspec: {hosts: [a.test], resolution: STATIC, ports: "+
			"[{number: 80, name: http, protocol: HTTP}], endpoints: [{address: %s}]}\n", address))
	}
	// an invalid namespace, so the server withholds resources once there is a policy
	write(t, config, "rootNamespace: MESH\n")
	served("10.0.0.9")
	server, changes := startShared(t, discovery.Options{Files: []string{directory},
		Settings: discovery.Settings{MeshConfigFile: config}})
	push := func(path string) {
		changes <- []string{path}
		changes <- nil // the server receives this once it has processed the previous change
	}
	p, end, err := subscribe(t, server, "", capturedAt("10.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	before := contentOf(t, p.feed)
	write(t, policy, "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n"+
		"metadata: {name: none, namespace: mesh}\nspec: {}\n")
	push(policy)
	served("10.0.0.1")
	push(service)
	if server.ResourcesWithheldReason() == "" {
		t.Fatal("something is served")
	}
	if got := contentOf(t, p.current(t)); got != before {
		t.Errorf("while nothing is served:\n%s\nwant\n%s", got, before)
	}
	if again, err := p.find(); err != nil || again != p.feed {
		t.Errorf("the proxy has another feed while nothing is served: %v", err)
	}
	write(t, config, "rootNamespace: mesh\n")
	push(config)
	if got := contentOf(t, p.current(t)); !strings.Contains(got, "inbound|80||") {
		t.Errorf("afterwards:\n%s", got)
	}
}

// TestShared_ProblemsOfHosts: on each of two hosts, two services have the same port with different
// protocols. The problem of a host is reported once its proxy is connected, and only once if it
// connects twice.
func TestShared_ProblemsOfHosts(t *testing.T) {
	const entry = "ServiceEntry shop/%[1]s: {hosts: [%[1]s.test], resolution: STATIC, ports: " +
		"[{number: %[3]d, name: p, protocol: %[2]s}], endpoints: [{address: 10.0.0.%[4]d}]}"
	server, _ := startShared(t, discovery.Options{Files: []string{meshOf(t,
		fmt.Sprintf(entry, "a", "HTTP", 80, 1), fmt.Sprintf(entry, "b", "TCP", 80, 1),
		fmt.Sprintf(entry, "c", "HTTP", 90, 2), fmt.Sprintf(entry, "d", "TCP", 90, 2))}})
	for i, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.1"} {
		_, end, err := subscribe(t, server, "", capturedAt(address))
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		found := 0
		for _, p := range server.Problems() {
			if strings.Contains(p.Message, "speaks another protocol") {
				found++
			}
		}
		if want := min(i+1, 2); found != want {
			t.Errorf("%d problems with %d hosts, want %d", found, i+1, want)
		}
	}
}
