package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/resource"
)

func TestCheck_NamesFileLineObjectAndField(t *testing.T) {
	directory := t.TempDir()
	write(t, filepath.Join(directory, "a.yaml"), fmt.Sprintf(webEntry, "web", "10.0.0.1")+"---\n"+`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: web
  namespace: shop
spec:
  hosts:
  - web.test
  http:
  - route:
    - destination:
        host: web.test
        subset: v1
        port: {number: 80}
    timout: 3s
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: lost, namespace: shop}
spec:
  hosts: [lost.test]
  gateways: [edge]
  http:
  - route: [{destination: {host: web.test, port: {number: 80}}}]
`)
	problems, err := discovery.Check([]string{directory}, discovery.CheckOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range problems {
		got = append(got, string(p.Severity)+" "+strings.TrimPrefix(p.String(), directory+"/"))
	}
	want := []string{
		`error a.yaml:24: VirtualService shop/web: spec.http[0].timout: unknown field "timout"; did ` +
			`you mean timeout?`,
		`warning a.yaml:26: VirtualService shop/lost: spec.gateways[0]: there is no Gateway shop/edge; ` +
			`add it or correct the name`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := discovery.Check(nil, discovery.CheckOptions{NodeType: "waypoint"}); err == nil {
		t.Error("a type that is none was accepted")
	}
}

func TestCheck_ReadsMeshConfig(t *testing.T) {
	directory := t.TempDir()
	file, entry := filepath.Join(directory, "mesh"), filepath.Join(directory, "web.yaml")
	write(t, entry, fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	write(t, file, "connectTimeout: 1h\n")
	problems, err := discovery.Check([]string{entry}, discovery.CheckOptions{MeshConfigFile: file})
	if err != nil || len(problems) != 1 || problems[0].File != file ||
		problems[0].Field != "connectTimeout" {
		t.Errorf("%v %v", problems, err)
	}
	// By default, services are now exported to their own namespace only, so the ServiceEntry is not
	// visible in namespace bank.
	write(t, file, "defaultServiceExportTo: [.]\n")
	said, err := discovery.Explain([]string{entry}, discovery.CheckOptions{Namespace: "bank",
		MeshConfigFile: file}, explain.Request{Host: "web.test", Port: 80})
	if err != nil || said.Outcome != explain.OutcomeConnectionRefused {
		t.Errorf("%s %v", said.Outcome, err)
	}
}

func TestExplain_NamesObjects(t *testing.T) {
	directory := t.TempDir()
	files := map[string]string{
		"web.yaml":  fmt.Sprintf(webEntry, "web", "10.0.0.1"),
		"rule.yaml": fmt.Sprintf(webRule, "web", "RANDOM"),
		"z.yaml": "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " +
			"late, namespace: shop}\nspec: {hosts: [late.test], resolution: STATIC, ports: " +
			"[{number: 80, name: tcp, protocol: TCP}], endpoints: [{address: 10.0.0.9}]}\n",
		"route.yaml": "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: " +
			"{name: web, namespace: shop}\nspec: {hosts: [web.test], http: [{name: v, route: " +
			"[{destination: {host: web.test, subset: v1}}]}]}\n",
	}
	for name, text := range files {
		write(t, filepath.Join(directory, name), text)
	}
	server, _ := start(t, discovery.Options{Files: []string{directory}})
	proxy := node("sidecar", "shop", nil)
	said, err := server.Explain(proxy, explain.Request{Host: "web.test", Port: 80},
		explain.EnvoyState{})
	if err != nil {
		t.Fatal(err)
	}
	deciding := map[string]string{}
	for _, s := range said.Steps {
		for _, o := range s.Origins {
			deciding[s.Kind] += filepath.Base(o.File) + " "
		}
	}
	want := map[string]string{"virtual host": "route.yaml ", "route": "route.yaml ",
		"action":  "route.yaml ",
		"cluster": "web.yaml rule.yaml ", "endpoints": "web.yaml rule.yaml "}
	delete(deciding, "listener")
	// Not compared here: the origin of a filter chain, which is the oldest service on its port.
	// TestConformance checks it.
	delete(deciding, "filter chain")
	if diff := cmp.Diff(want, deciding); diff != "" || said.Outcome != explain.OutcomeForwarded {
		t.Errorf("%s %s", said.Outcome, diff)
	}
	if said, err = server.Explain(proxy, explain.Request{Host: "nobody.test", Port: 80},
		explain.EnvoyState{}); err != nil || said.Status != 502 ||
		!strings.Contains(said.Fix, "ServiceEntry") {
		t.Errorf("%+v %v", said.Answer, err)
	}
	if said, err = server.Explain(proxy, explain.Request{Host: "late.test", Port: 80},
		explain.EnvoyState{}); err != nil || len(said.Problems) != 1 ||
		!strings.Contains(said.Problems[0].Message, "nothing listens for host late.test") {
		t.Errorf("of one that came late: %v %v", said.Problems, err)
	}
	feed, err := server.Feed(proxy)
	if err != nil {
		t.Fatal(err)
	}
	refuse(t, feed, resource.ClusterType, "outbound|80|v1|web.test", "no such thing")
	eventually(t, "a refused cluster", func() (bool, string) {
		said, err := server.Explain(proxy, explain.Request{Host: "web.test", Port: 80},
			explain.EnvoyState{})
		return err == nil && len(said.UnknownFacts) == 1 && len(said.Problems) > 0,
			fmt.Sprintf("%q %v %v", said.UnknownFacts, said.Problems, err)
	})

	origins, err := server.Origins(proxy)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, o := range origins {
		got[o.Type[strings.LastIndexByte(o.Type,
			'.')+1:]+" "+o.Name+" "+o.VirtualHost] = filepath.Base(o.Origins[0].File)
	}
	for name, file := range map[string]string{"Cluster outbound|80|v1|web.test ": "web.yaml",
		"ClusterLoadAssignment outbound|80||web.test ": "web.yaml",
		"RouteConfiguration 80 web.test:80":            "route.yaml",
		"RouteConfiguration 9000 web.test:9000":        "route.yaml"} {
		if got[name] != file {
			t.Errorf("%q is from %q, want %q", name, got[name], file)
		}
	}
}

func TestCheck_UndefinedReferences(t *testing.T) {
	const service = "ServiceEntry shop/web: {hosts: [web.test, '*.wild.test'], resolution: " +
		"STATIC, endpoints: [{address: 10.0.0.1, labels: {version: v1}}], ports: [{number: 80, " +
		"name: http, protocol: HTTP}]}"
	const rule = "DestinationRule shop/web: {host: '*.test', subsets: [{name: v1}]}"
	const gateway = "Gateway shop/edge: {selector: {app: edge}, servers: [{port: {number: 80, " +
		"name: http, protocol: HTTP}, hosts: ['*']}]}"
	const unknown = "no service has the host nowhere.test; requests get 503; add a ServiceEntry " +
		"or correct the host"
	route := func(destination string) string {
		return "VirtualService shop/v: {hosts: [v.test], gateways: [edge], http: [{route: " +
			"[{destination: {" + destination + "}}]}]}"
	}
	edge := map[string]string{"app": "edge"}
	for _, c := range []struct {
		name    string
		options discovery.CheckOptions
		objects []string
		want    []string
	}{
		{"all is there", discovery.CheckOptions{NodeType: "router", Labels: edge, Namespace: "shop"},
			[]string{service, gateway, route("host: web.test")}, nil},
		{"a host", discovery.CheckOptions{NodeType: "router", Labels: edge, Namespace: "shop"},
			[]string{service, gateway, route("host: nowhere.test")},
			[]string{"warning VirtualService shop/v: spec.http[0].route[0].destination.host: " +
				unknown}},
		{"a host of a Gateway that is not for this proxy", discovery.CheckOptions{},
			[]string{service, gateway, route("host: nowhere.test")},
			[]string{"warning Gateway shop/edge: spec.selector: has no effect here: this proxy " +
				"is a sidecar, and Gateways are for routers; set type = \"router\" and labels " +
				"that its selector app=edge matches in [node]",
				"warning VirtualService shop/v: spec.http[0].route[0].destination.host: " +
					unknown}},
		{"a host that a pattern covers", discovery.CheckOptions{Labels: edge}, []string{service,
			gateway, route("host: a.wild.test")},
			[]string{"warning Gateway shop/edge: spec.selector: has no effect here: this proxy " +
				"is a sidecar, and Gateways are for routers; set type = \"router\" in [node]"}},
		{"a Gateway without a selector", discovery.CheckOptions{}, []string{strings.Replace(gateway,
			"selector: {app: edge}, ", "", 1)},
			[]string{"warning Gateway shop/edge: has no effect here: this proxy is a sidecar, " +
				"and Gateways are for routers; set type = \"router\" in [node]"}},
		{"a subset", discovery.CheckOptions{NodeType: "router"}, []string{service, rule, gateway,
			route("host: web.test, subset: v2")},
			[]string{"warning Gateway shop/edge: spec.selector: has no effect here: its selector " +
				"is app=edge, the labels of this proxy are none; set [node] labels, or correct " +
				"the selector",
				"warning VirtualService shop/v: spec.http[0].route[0].destination.subset: no " +
					"DestinationRule for web.test has a subset v2; requests get 503; add the " +
					"subset or correct its name"}},
		{"a subset of a pattern's rule", discovery.CheckOptions{NodeType: "router", Labels: edge,
			Namespace: "bank"}, []string{service, rule, gateway,
			route("host: web.test, subset: v1")}, nil},
		{"a mirror", discovery.CheckOptions{NodeType: "router", Labels: edge}, []string{service,
			gateway,
			"VirtualService shop/v: {hosts: [v.test], gateways: [edge], http: [{route: " +
				"[{destination: {host: web.test}}], mirrors: [{destination: {host: " +
				"nowhere.test}}]}]}"},
			[]string{"warning VirtualService shop/v: spec.http[0].mirrors[0].destination.host: " +
				unknown}},
	} {
		folder := meshOf(t, c.objects...)
		problems, err := discovery.Check([]string{folder}, c.options)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range problems {
			_, text, _ := strings.Cut(p.String(), ": ")
			got = append(got, string(p.Severity)+" "+text)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", c.name, diff)
		}
	}
}

func TestCheck_TabsInYAML(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	for text, want := range map[string]string{
		"kind: x\nmetadata:\n\tname: y\n": ":3: not valid YAML: indent with spaces, not tabs",
		"kind: [x\n":                      ":1: not valid YAML: did not find expected ',' or ']'",
	} {
		write(t, file, text)
		problems, err := discovery.Check([]string{file}, discovery.CheckOptions{})
		if err != nil || len(problems) != 1 || problems[0].String() != file+want {
			t.Errorf("%q: %v %v, want %s", text, problems, err, want)
		}
	}
}

// TestRescan_IsDoneWhenItReturns changes files without file events, and calls Rescan concurrently.
// Each call returns after its change has taken effect.
func TestRescan_IsDoneWhenItReturns(t *testing.T) {
	directory := t.TempDir()
	server, _ := start(t, discovery.Options{Files: []string{directory}})
	for i := range 20 {
		text, want := "kind: [\n", 1
		if i%2 == 1 {
			text, want = "", 0
		}
		write(t, filepath.Join(directory, "a.yaml"), text)
		failed := make(chan error, 4)
		for range cap(failed) {
			go func() { failed <- server.Rescan(t.Context()) }()
		}
		for range cap(failed) {
			if err := <-failed; err != nil {
				t.Fatal(err)
			}
		}
		if got := len(server.Problems()); got != want {
			t.Errorf("round %d: %d problems, want %d", i, got, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Rescan(ended); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
