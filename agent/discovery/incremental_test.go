package discovery_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// versions returns the versions of all resources of a feed, by "type name".
func versions(feed *resource.Feed) map[string]string {
	all := map[string]string{}
	snapshot, _ := feed.Current()
	for _, typeURL := range snapshot.Types() {
		for name, r := range snapshot.ByType(typeURL) {
			all[typeURL[strings.LastIndexByte(typeURL, '.')+1:]+" "+name] = r.Version
		}
	}
	return all
}

// feedOf returns the feed of resources for the node kindNode(kind).
func feedOf(t *testing.T, server *discovery.Server, kind string) *resource.Feed {
	t.Helper()
	feed, err := server.Feed(kindNode(kind))
	if err != nil {
		t.Fatal(err)
	}
	return feed
}

// kindNode returns the node of a sidecar or a router; for REDIRECT or TPROXY, that of a sidecar at
// 10.0.0.1 with interception.
func kindNode(kind string) *corev3.Node {
	kind, identity := strings.CutSuffix(kind, " identity")
	n := node(kind, "shop", map[string]any{"app": "edge"})
	if kind == "REDIRECT" || kind == "TPROXY" {
		n = node("sidecar", "shop", map[string]any{"app": "edge"})
		n.Id = strings.Replace(n.Id, "127.0.0.1", "10.0.0.1", 1)
		n.Metadata.Fields["INTERCEPTION_MODE"] = structpb.NewStringValue(kind)
	}
	if identity {
		n.Metadata.Fields["OUTRIDER_IDENTITY"] = structpb.NewStringValue("true")
	}
	return n
}

// randomObject returns a valid object in YAML. There are few different hosts, ports and names, so
// that objects affect each other.
func randomObject(r *rand.Rand) string {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	host := func() string { return pick("a.test", "b.test", "c.test", "*.test", "d.other") }
	namespace := pick("shop", "shop", "bank")
	head := func(kind string) string {
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, "+
			"namespace: %s}\nspec:\n", kind, pick("one", "two", "three"), namespace)
	}
	export := pick("", "", "  exportTo: [.]\n", "  exportTo: ['*']\n")
	switch r.IntN(17) {
	case 12, 13:
		return head("EnvoyFilter") +
			fmt.Sprintf("  priority: %d\n%s  configPatches:\n  - %s\n  - %s\n", r.IntN(3),
				pick("", "  workloadSelector: {labels: {app: edge}}\n"), randomPatch(pick, host()),
				randomPatch(pick, host()))
	case 14, 15:
		return head("Sidecar") + pick("", "  workloadSelector: {labels: {app: edge}}\n",
			"  workloadSelector: {labels: {app: other}}\n") +
			pick("", "  outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n",
				"  outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: d.other, port: "+
					"{number: 80}}}\n") +
			pick("", "",
				"  ingress: [{port: {number: 7000, protocol: HTTP}, defaultEndpoint: "+
					"'127.0.0.1:7001'}]\n") +
			"  egress:\n" + pick("", "  - {port: {number: 80, protocol: HTTP}, hosts: ['./*']}\n",
			"  - {port: {number: 81, protocol: HTTP}, bind: 127.0.0.9, hosts: ['*/a.test', "+
				"'bank/b.test']}\n", "  - {port: {number: "+pick("81", "3128")+
				", protocol: HTTP_PROXY}, hosts: ['*/*.test', '~bank/b.test']}\n") +
			"  - hosts: ['" + pick("*/*", "./*", "bank/*", "~/*", "*/c.test") + "']\n"
	case 16:
		if r.IntN(3) == 0 {
			return head("ServiceEntry") + export + fmt.Sprintf("  hosts: ['%s']\n  resolution: "+
				"DYNAMIC_DNS\n  ports: [{number: %s, name: p0, protocol: %s}]\n",
				pick("*.test", "*.a.test"), pick("80", "81"), pick("HTTP", "TLS"))
		}
		return head("ServiceEntry") + export +
			fmt.Sprintf("  hosts: ['%s']\n  addresses: [%s]\n  resolution: %s\n  ports: "+
				"[{number: %s, name: p0%s}]\n",
				host(), pick("10.9.0.1", "10.9.0.2", "10.9.1.0/24"), pick("NONE", "STATIC"),
				pick("80", "81"), pick("", ", protocol: TCP", ", protocol: TLS"))
	case 9:
		return head("WorkloadEntry") +
			fmt.Sprintf("  address: 10.0.1.%d\n  locality: %s\n  labels: {version: %s%s}\n",
				r.IntN(9), pick("eu/a", "us/b", "''"), pick("v1", "v2"), pick("", ", app: a"))
	case 10, 11:
		return head("ServiceEntry") + export +
			fmt.Sprintf("  hosts: ['%s']\n  resolution: STATIC\n  ports: [{number: %s, name: p0, "+
				"protocol: HTTP}]\n  workloadSelector: {labels: {%s}}\n",
				host(), pick("80", "81"), pick("version: v1", "app: a", "app: a, version: v2"))
	case 0, 1, 2:
		text := head("ServiceEntry") + export +
			fmt.Sprintf("  hosts: ['%s']\n  addresses: [10.1.0.%d]\n  resolution: STATIC\n%s  "+
				"ports:\n", host(), r.IntN(4), pick("", "  location: MESH_INTERNAL\n"))
		for i, port := range []string{"80", "81", "82"} {
			if i == 0 || r.IntN(2) == 0 {
				text += fmt.Sprintf("  - {number: %s, name: p%d, protocol: %s}\n", port, i,
					pick("HTTP", "HTTP", "HTTP", "GRPC", "TCP", "TLS"))
			}
		}
		return text + fmt.Sprintf("  endpoints:\n  - {address: 10.0.0.%d, labels: {version: %s%s}}\n",
			r.IntN(3), pick("v1", "v2"), pick("", ", security.istio.io/tlsMode: istio"))
	case 3, 4:
		return head("DestinationRule") + pick(export, export,
			"  workloadSelector: {matchLabels: {app: edge}}\n") +
			fmt.Sprintf("  host: '%s'\n  trafficPolicy: {loadBalancer: {%s}}\n  subsets: [{name: "+
				"v1, labels: {version: v1}}%s]\n", host(),
				pick("simple: RANDOM", "consistentHash: {httpHeaderName: x-user}",
					"simple: ROUND_ROBIN",
					"localityLbSetting: {distribute: [{from: eu, to: {eu: 80, us: 20}}]}"),
				pick("", ", {name: v2, labels: {version: v2}}"))
	case 5, 6:
		destination := fmt.Sprintf("{host: '%s'%s%s}", host(), pick("", ", subset: v1",
			", subset: v2"), pick("", ", port: {number: 80}", ", port: {number: 81}"))
		return head("VirtualService") + export +
			fmt.Sprintf("  hosts: ['%s', %s]\n%s  http:\n  - match: [{uri: {prefix: /%d}}]\n    "+
				"route: [{destination: %s}]\n%s", host(), pick("alias.one", "alias.two",
				"10.1.0.1"),
				pick("", "", "  gateways: [gw]\n", "  gateways: [gw, mesh, bank/gw]\n"), r.IntN(3),
				destination, pick("", "  - directResponse: {status: 404}\n"))
	case 7:
		if r.IntN(2) == 0 { // a delegate, and a VirtualService that delegates to it
			if r.IntN(2) == 0 {
				return head("VirtualService") + export +
					fmt.Sprintf("  http: [{match: [{uri: {prefix: /%d}}], route: [{destination: "+
						"{host: b.test}}]}]\n", r.IntN(2))
			}
			return head("VirtualService") + export +
				fmt.Sprintf("  hosts: ['%s']\n%s  http: [{match: [{uri: {prefix: /%d}}], "+
					"delegate: {name: %s}}, {delegate: {name: three, namespace: shop}}]\n", host(),
					pick("", "  gateways: [gw, mesh]\n"), r.IntN(2), pick("one", "two"))
		}
		head := head("VirtualService") + export + pick("", "  gateways: [gw]\n",
			"  gateways: [gw, bank/gw, mesh]\n")
		if r.IntN(2) == 0 {
			return head +
				fmt.Sprintf("  hosts: ['%s']\n  tcp:\n  - match: [{%s}]\n    route: "+
					"[{destination: {host: b.test%s}}]\n", host(),
					pick("port: 80", "destinationSubnets: [10.0.0.0/8]",
						"sourceLabels: {app: edge}"),
					pick("", ", subset: v1"))
		}
		return head +
			fmt.Sprintf("  hosts: ['%s']\n  tls:\n  - match: [{sniHosts: [a.test], port: %s}]\n  "+
				"  route: [{destination: {host: c.test}, weight: 1}, {destination: {host: "+
				"d.other}, weight: 2}]\n",
				pick("a.test", "*.test"), pick("80", "81"))
	default:
		return regexp.MustCompile(`name: \w+`).ReplaceAllString(head("Gateway"), "name: gw") +
			fmt.Sprintf("  selector: {app: %s}\n  servers:\n  - port: {number: %s, name: h, "+
				"protocol: HTTP}\n    hosts: ['%s', '%s/*.test']\n%s",
				pick("edge", "edge", "other"), pick("8080", "8081"), pick("*", "a.test",
					"alias.one"),
				pick("shop", "bank", "*", "."),
				pick("", "    tls: {httpsRedirect: true}\n",
					"  - port: {number: 9000, name: t, protocol: TCP}\n    hosts: ['*']\n",
					"  - port: {number: 8443, name: p, protocol: TLS}\n    hosts: [a.test]\n    "+
						"tls: {mode: PASSTHROUGH}\n  - port: {number: 8443, name: t, protocol: "+
						"TLS}\n    hosts: [b.test]\n    tls: {mode: SIMPLE, serverCertificate: "+
						"/c, privateKey: /l}\n",
					"  - port: {number: 8443, name: e, protocol: TLS}\n    hosts: ["+pick("'*.test'",
						"bank/a.test")+"]\n    tls: {mode: AUTO_PASSTHROUGH}\n",
					"  - port: {number: 8443, name: s, protocol: HTTPS}\n    hosts: ['*.test']\n "+
						"   tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}\n"))
	}
}

// randomPatch returns a patch of an EnvoyFilter that may match resources of randomObject, or
// conflict with them.
func randomPatch(pick func(...string) string, host string) string {
	return pick(
		fmt.Sprintf("{applyTo: CLUSTER, match: {cluster: {service: '%s'}}, patch: {operation: "+
			"MERGE, value: {connect_timeout: %s}}}", host, pick("1s", "2s")),
		fmt.Sprintf("{applyTo: CLUSTER, match: {cluster: {name: 'outbound|80||%s'}}, patch: "+
			"{operation: REMOVE}}", host),
		fmt.Sprintf("{applyTo: CLUSTER, match: {context: %s}, patch: {operation: ADD, value: "+
			"{name: 'outbound|80||%s', connect_timeout: %s}}}", pick("ANY", "GATEWAY"), host,
			pick("1s", "2s")),
		fmt.Sprintf("{applyTo: CLUSTER, match: {cluster: {portNumber: 80}}, patch: {operation: "+
			"MERGE, value: {name: %s}}}", pick("renamed", "''")),
		fmt.Sprintf("{applyTo: LISTENER, match: {listener: {portNumber: %s}}, patch: {operation: "+
			"REMOVE}}", pick("80", "8080", "8443")),
		"{applyTo: LISTENER, patch: {operation: ADD, value: {name: 0.0.0.0_8080, address: {pipe: "+
			"{path: /x}}}}}",
		fmt.Sprintf("{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: %s, "+
			"typed_config: {'@type': type.googleapis.com/not.linked.Here, a: 1}}}}", pick("x", "z",
			"''")),
		fmt.Sprintf("{applyTo: VIRTUAL_HOST, match: {routeConfiguration: {vhost: {domainName: "+
			"'%s'}}}, patch: {operation: %s, value: {name: x, domains: [x]}}}", host, pick("REMOVE",
			"REPLACE")),
		fmt.Sprintf("{applyTo: HTTP_ROUTE, match: {routeConfiguration: {portNumber: %s}}, patch: "+
			"{operation: MERGE, value: {response_headers_to_remove: [%s]}}}", pick("80", "81",
			"8080"), pick("x-a", "x-b")),
		"{applyTo: ROUTE_CONFIGURATION, patch: {operation: MERGE, value: "+
			"{max_direct_response_body_size_bytes: 0}}}",
		"{applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: one, typed_config: "+
			"{'@type': type.googleapis.com/not.linked.Here}}}}")
}

// TestIncremental_EqualsFreshStart changes files at random. After each change, every view and the
// problems must equal those of a new server. With OUTRIDER_TEST_FULL=1 there are 600 runs.
func TestIncremental_EqualsFreshStart(t *testing.T) {
	const steps = 25
	seeds := uint64(5)
	if os.Getenv("OUTRIDER_TEST_FULL") != "" {
		seeds = 600
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			server := startIncremental(t)
			for step := range steps {
				change := map[string]string{}
				for range 1 + r.IntN(3) {
					name := fmt.Sprintf("%d.yaml", r.IntN(12))
					known, changed := change[name]
					if !changed {
						known = server.files[name]
					}
					if known != "" && r.IntN(3) == 0 {
						change[name] = ""
						continue
					}
					change[name] = randomObject(r)
					if r.IntN(3) == 0 {
						change[name] += "---\n" + randomObject(r)
					}
				}
				server.change(t, fmt.Sprintf("step %d", step), change)
			}
		})
	}
}

// TestIncremental_OneChange makes changes after which an updated server once differed from a new
// one.
func TestIncremental_OneChange(t *testing.T) {
	service := func(host string) string {
		return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: one}\n" +
			"spec: {hosts: [" + host + "], resolution: STATIC, location: MESH_INTERNAL, ports: " +
			"[{number: 80, name: h, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}\n"
	}
	for name, c := range map[string]struct{ before, change map[string]string }{
		"Gateway with AUTO_PASSTHROUGH and its service end": {
			before: map[string]string{"service.yaml": service("a.test"), "gateway.yaml": `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw}
spec:
  selector: {app: edge}
  servers: [{port: {number: 8443, name: t, protocol: TLS}, hosts: ['*.test'], tls: {mode: AUTO_PASSTHROUGH}}]
`},
			change: map[string]string{"service.yaml": "", "gateway.yaml": ""}},
		"service for the wildcard of a destination": {
			before: map[string]string{"routes.yaml": `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: v}
spec: {hosts: [c.test], http: [{route: [{destination: {host: '*.test', subset: v1}}]}]}
`},
			change: map[string]string{"service.yaml": service("a.test")}},
		"VirtualService for a wildcard beside one for a host without service and routes": {
			before: map[string]string{"routes.yaml": `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: s}
spec:
  egress:
  - {port: {number: 81, protocol: HTTP}, bind: 127.0.0.9, hosts: ['bank/b.test']}
  - hosts: ['*/*']
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: v}
spec: {hosts: [b.test], http: [{delegate: {name: missing}}]}
`},
			change: map[string]string{"wildcard.yaml": `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: w, namespace: bank}
spec: {hosts: ['*.test'], http: [{directResponse: {status: 404}}]}
`}},
	} {
		t.Run(name, func(t *testing.T) {
			server := startIncremental(t)
			server.change(t, "before", c.before)
			server.change(t, "after", c.change)
		})
	}
}

// incremental is a server whose files change, with a connected proxy of each kind.
type incremental struct {
	directory string
	server    *discovery.FleetServer
	changes   chan<- []string
	proxies   map[string]*proxyOfFleet // by kind
	files     map[string]string        // texts by name
}

var incrementalKinds = []string{"sidecar", "router", "REDIRECT", "TPROXY"}

func startIncremental(t *testing.T) *incremental {
	t.Helper()
	i := &incremental{directory: t.TempDir(), proxies: map[string]*proxyOfFleet{},
		files: map[string]string{}}
	i.server, i.changes = startShared(t, discovery.Options{Files: []string{i.directory},
		Namespace: "shop"})
	for _, kind := range incrementalKinds {
		i.proxies[kind] = connectKind(t, i.server, kind)
	}
	return i
}

// connectKind subscribes a proxy of a kind to its feed.
func connectKind(t *testing.T, server *discovery.FleetServer, kind string) *proxyOfFleet {
	t.Helper()
	node := kindNode(kind)
	if kind == "TPROXY" {
		node.Metadata.Fields["HTTP_PROXY_PORT"] = structpb.NewStringValue("3128")
	}
	p, end, err := subscribe(t, server, "", node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	return p
}

// change writes files ("": removes them) in one change. It then compares the resources for every
// kind of proxy, and the problems, with those of a new server.
func (i *incremental) change(t *testing.T, when string, files map[string]string) {
	t.Helper()
	var reported []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(i.directory, name)
		reported = append(reported, path)
		if files[name] != "" {
			i.files[name] = files[name]
			write(t, path, files[name])
			continue
		}
		delete(i.files, name)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	i.changes <- reported
	i.changes <- nil // the server receives this once it has processed the previous change
	fresh, _ := startShared(t, discovery.Options{Files: []string{i.directory}, Namespace: "shop"})
	for _, kind := range incrementalKinds {
		if diff := cmp.Diff(versions(connectKind(t, fresh, kind).feed),
			versions(i.proxies[kind].current(t))); diff != "" {
			t.Fatalf("%s, %s (-fresh +changed):\n%s\nfiles:\n%s", when, kind, diff, dump(i.files))
		}
	}
	if diff := cmp.Diff(fresh.Problems(), i.server.Problems()); diff != "" {
		t.Fatalf("%s, problems (-fresh +changed):\n%s\nfiles:\n%s", when, diff, dump(i.files))
	}
}

func dump(files map[string]string) string {
	var text strings.Builder
	for _, path := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&text, "# %s\n%s", filepath.Base(path), files[path])
	}
	return text.String()
}
