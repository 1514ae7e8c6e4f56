package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
)

// TestOrigins_OfEveryResource checks the origins of outbound and inbound resources, of gateways,
// and of resources that EnvoyFilters add and change.
func TestOrigins_OfEveryResource(t *testing.T) {
	const head = "apiVersion: networking.istio.io/v1\nkind: "
	directory := t.TempDir()
	for name, text := range map[string]string{
		"sidecar": head +
			"Sidecar\nmetadata: {name: default, namespace: shop}\nspec:\n  ingress: [{port: " +
			"{number: 8080, protocol: HTTP, name: http}, defaultEndpoint: 127.0.0.1:9000}]\n",
		"web": head +
			"ServiceEntry\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web.test], " +
			"resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], " +
			"endpoints: [{address: 10.0.0.1}]}\n",
		"route": head +
			"VirtualService\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web.test], " +
			"gateways: [mesh, gate], http: [{directResponse: {status: 200}}]}\n",
		"rule": head +
			"DestinationRule\nmetadata: {name: web, namespace: shop}\nspec: {host: web.test, " +
			"trafficPolicy: {loadBalancer: {simple: RANDOM}}}\n",
		"gate": head +
			"Gateway\nmetadata: {name: gate, namespace: shop}\nspec: {selector: {app: edge}, " +
			"servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: [web.test]}]}\n",
		"filter": strings.Replace(head, "/v1", "/v1alpha3", 1) + `EnvoyFilter
metadata: {name: filter, namespace: shop}
spec:
  configPatches:
  - applyTo: CLUSTER
    patch: {operation: ADD, value: {name: added, type: STATIC, connect_timeout: 1s}}
  - applyTo: CLUSTER
    match: {cluster: {name: "outbound|80||web.test"}}
    patch: {operation: MERGE, value: {connect_timeout: 7s}}
  - applyTo: CLUSTER
    match: {cluster: {name: "inbound|8080||"}}
    patch: {operation: MERGE, value: {connect_timeout: 7s}}
  - applyTo: LISTENER
    match: {listener: {name: 127.0.0.1_80}}
    patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 65536}}
  - applyTo: VIRTUAL_HOST
    match: {routeConfiguration: {vhost: {name: "web.test:80"}}}
    patch: {operation: MERGE, value: {include_attempt_count_in_response: true}}
`,
	} {
		write(t, filepath.Join(directory, name+".yaml"), text)
	}
	server, _ := start(t, discovery.Options{Files: []string{directory},
		SeparateViewsByAddress: true})
	for kind, want := range map[string]map[string]string{
		"sidecar": {
			"Cluster added ":                               "filter",
			"Cluster outbound|80||web.test ":               "filter web rule",
			"Cluster inbound|8080|| ":                      "filter sidecar",
			"Listener 127.0.0.1_80 ":                       "filter web",
			"Listener 127.0.0.1_8080 ":                     "sidecar",
			"ClusterLoadAssignment outbound|80||web.test ": "web rule",
			"RouteConfiguration 80 web.test:80":            "route filter",
			"RouteConfiguration 80 ":                       "filter route",
		},
		"router": {
			"Listener 0.0.0.0_81 ":                         "gate",
			"RouteConfiguration http.81 web.test:81":       "route",
			"RouteConfiguration http.81 ":                  "route gate",
			"Cluster outbound|80||web.test ":               "filter web rule",
			"ClusterLoadAssignment outbound|80||web.test ": "web rule",
			"Cluster added ":                               "filter",
		},
	} {
		found, err := server.Origins(node(kind, "shop", map[string]any{"app": "edge"}))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, o := range found {
			var files []string
			for _, from := range o.Origins {
				files = append(files, strings.TrimSuffix(filepath.Base(from.File), ".yaml"))
			}
			got[o.Type[strings.LastIndexByte(o.Type,
				'.')+1:]+" "+o.Name+" "+o.VirtualHost] = strings.Join(files, " ")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", kind, diff)
		}
	}
}

// TestOrigins_OfEachRoute checks the lines of the routes of several VirtualServices and of a
// delegate, in Envoy's order.
func TestOrigins_OfEachRoute(t *testing.T) {
	directory := t.TempDir()
	write(t, filepath.Join(directory, "a.yaml"), `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gate, namespace: shop}
spec: {servers: [{port: {number: 81, name: http, protocol: HTTP}, hosts: [web.test]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.test]
  gateways: [gate, mesh]
  http:
  - match:
    - uri: {prefix: /a}
    - uri: {prefix: /b}
    directResponse: {status: 200}
  - match: [{uri: {prefix: /d}}]
    delegate: {name: part}
  - directResponse: {status: 201}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: part, namespace: shop}
spec:
  http:
  - match: [{uri: {prefix: /d/e}}]
    directResponse: {status: 202}
`)
	write(t, filepath.Join(directory, "b.yaml"), `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: more, namespace: shop}
spec:
  hosts: [web.test]
  gateways: [gate]
  http: [{match: [{uri: {prefix: /m}}], directResponse: {status: 203}}]
`)
	server, changes := start(t, discovery.Options{Files: []string{directory}})
	check := func(want string) {
		t.Helper()
		found, err := server.Origins(node("router", "shop", nil))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range found {
			for _, place := range o.RouteOrigins {
				got = append(got, fmt.Sprintf("%s:%d", filepath.Base(place.File), place.Line))
			}
		}
		if all := strings.Join(got, " "); all != want {
			t.Errorf("%s, want %s", all, want)
		}
	}
	check("a.yaml:13 a.yaml:13 a.yaml:26 b.yaml:7 a.yaml:19")
	file := filepath.Join(directory, "b.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, "# a comment that moves it\n"+string(content))
	changes <- []string{file}
	eventually(t, "the file is read again", func() (bool, string) {
		found, err := server.Explain(node("router", "shop", nil),
			explain.Request{Host: "web.test", Port: 81, Path: "/m"}, explain.EnvoyState{})
		return err == nil && strings.Contains(fmt.Sprint(found.Steps), file+":2 "),
			fmt.Sprint(found.Steps)
	})
	check("a.yaml:13 a.yaml:13 a.yaml:26 b.yaml:8 a.yaml:19")
}
