package model_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
)

// entry returns a ServiceEntry. All objects of a test are in one file, in which earlier ones count
// as older.
func entry(name, namespace, host, spec string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s}
spec: {hosts: [%q], resolution: STATIC, %s}
`, name, namespace, host, spec)
}

func other(kind, name, namespace, spec string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: %s
metadata: {name: %s, namespace: %s, labels: {app: %s}}
spec: {%s}
`, kind, name, namespace, name, spec)
}

const (
	port80 = `ports: [{number: 80, name: http, protocol: HTTP}]`
	http80 = port80 + `, endpoints: [{address: 1.1.1.1}]`
)

func TestWorld_Service(t *testing.T) {
	private := entry("private", "b", "a.test",
		port80+`, exportTo: ["."], endpoints: [{address: 2.2.2.2}]`)
	public := entry("public", "c", "a.test", port80+`, endpoints: [{address: 3.3.3.3}]`)
	second := entry("second", "c", "a.test",
		`ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: more, protocol: HTTP}],
  endpoints: [{address: 4.4.4.4}]`)
	chosen := entry("chosen", "a", "chosen.test",
		port80+`, workloadSelector: {labels: {app: one}}`) +
		other("WorkloadEntry", "one", "a", "address: 5.5.5.5") +
		other("WorkloadEntry", "two", "a", "address: 6.6.6.6") +
		other("WorkloadEntry", "one", "b", "address: 7.7.7.7")
	for _, test := range []struct{ name, mesh, host, reader, want string }{
		{"the reader's namespace first", public + private, "a.test", "b", "b [80] [2.2.2.2]"},
		{"private to its namespace", private + public, "a.test", "a", "c [80] [3.3.3.3]"},
		{"none", private, "a.test", "a", "none"},
		{"entries of a namespace are merged", public + second, "a.test", "a",
			"c [80 81] [3.3.3.3 4.4.4.4]"},
		{"WorkloadEntries of the namespace", chosen, "chosen.test", "b", "a [80] [5.5.5.5]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, _ := meshtest.New(t, test.mesh)
			got := "none"
			if s := m.Service(test.host, test.reader); s != nil {
				var ports []uint32
				var addresses []string
				for _, p := range s.Ports {
					ports = append(ports, p.Number)
				}
				for _, e := range s.Endpoints(s.Port(80), nil) {
					addresses = append(addresses, e.Address)
				}
				got = fmt.Sprint(s.Namespace, " ", ports, " ", addresses)
			}
			if got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestWorld_RulePrecedence(t *testing.T) {
	rule := func(name, namespace, host, more string) string {
		return other("DestinationRule", name, namespace,
			fmt.Sprintf("host: %q, subsets: [{name: %s}]%s", host, name, more))
	}
	service := entry("a", "service", "a.test", http80)
	own := rule("own", "reader", "a.test", "")
	ofService := rule("of-service", "service", "a.test", "")
	root := rule("root", "istio-system", "a.test", "")
	pattern := rule("pattern", "reader", "*.test", "")
	workload := rule("workload", "reader", "a.test", ", workloadSelector: {matchLabels: {app: x}}")
	for _, test := range []struct{ name, mesh, want string }{
		{"the reader's namespace", own + ofService + root, "own"},
		{"the service's namespace", ofService + root, "of-service"},
		{"the root namespace", root, "root"},
		{"a host before a pattern", pattern + own, "own"},
		{"a pattern", pattern + ofService, "pattern"},
		{"a workload's, with what is for all", own + workload, "workload own"},
		{"none", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, _ := meshtest.New(t, service+test.mesh)
			r := m.DestinationRule(m.Service("a.test", "reader"), model.Node{Namespace: "reader",
				Labels: map[string]string{"app": "x"}})
			var got []string
			if r != nil {
				for _, s := range r.Subsets {
					got = append(got, s.Name)
				}
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestWorld_RequestsPrecedence(t *testing.T) {
	virtualService := func(name, namespace, host, more string) string {
		return other("VirtualService", name, namespace, fmt.Sprintf(
			"hosts: [%q], http: [{directResponse: {status: 200}}]%s", host, more))
	}
	all := virtualService("all", "b", "a.test", "")
	list := virtualService("list", "b", "a.test", `, exportTo: ["a", "b"]`)
	private := virtualService("private", "a", "a.test", `, exportTo: ["."]`)
	wide := virtualService("wide", "b", "*.test", "")
	hidden := virtualService("hidden", "b", "a.test", `, exportTo: ["."]`)
	gateway := virtualService("gateway", "b", "a.test", `, gateways: [edge]`)
	for _, test := range []struct{ name, mesh, want string }{
		{"by reach, then by age", all + list + private, "private list all"},
		{"a host hides the pattern", wide + all, "all"},
		{"the pattern alone", wide, "wide"},
		{"another namespace's own", hidden, ""},
		{"for gateways only", gateway, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, _ := meshtest.New(t, test.mesh)
			var got []string
			for _, r := range m.HTTPVirtualServices("a.test", "a") {
				got = append(got, r.Object.Name)
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestWorld_ScopeOfSidecar(t *testing.T) {
	services := entry("a", "shop", "a.test", http80) + entry("b", "other", "b.test", http80)
	everyone := other("Sidecar", "everyone", "shop", `egress: [{hosts: ["./*"]}]`)
	chosen := other("Sidecar", "chosen", "shop",
		`workloadSelector: {labels: {app: x}}, egress: [{hosts: ["other/*"]}]`)
	for _, test := range []struct{ name, mesh, want string }{
		{"without a Sidecar", "", "a.test b.test"},
		{"the namespace's", everyone, "a.test"},
		{"the workload's first", everyone + chosen, "b.test"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, _ := meshtest.New(t, services+test.mesh)
			scope := m.SidecarScope(model.Node{Namespace: "shop",
				Labels: map[string]string{"app": "x"}})
			var got []string
			for _, host := range []string{"a.test", "b.test"} {
				if scope.ImportedService(m.Mesh, host) != nil {
					got = append(got, host)
				}
			}
			if diff := cmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestWorld_Touched changes one object after the other, and checks what Apply reports as affected.
func TestWorld_Touched(t *testing.T) {
	m, _ := meshtest.New(t, entry("a", "shop", "a.test", http80)+entry("b", "shop", "b.test",
		http80))
	mesh := entry("a", "shop", "a.test", http80) + entry("b", "shop", "b.test", http80)
	for _, step := range []struct{ add, want string }{
		{other("DestinationRule", "a", "shop", "host: a.test"), "a.test"},
		{other("DestinationRule", "all", "shop", `host: "*.test"`), "*.test a.test b.test"},
		{other("VirtualService", "b", "shop",
			"hosts: [b.test], http: [{directResponse: {status: 200}}]"), "b.test"},
		{other("VirtualService", "g", "shop",
			"hosts: [b.test], gateways: [edge], http: [{directResponse: {status: 200}}]"),
			"bindings shop/edge"},
		{other("Sidecar", "s", "shop", `egress: [{hosts: ["./*"]}]`), "sidecars"},
		{other("Gateway", "edge", "shop", "selector: {a: b}, "+
			"servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: [a.test]}]"),
			"gateways"},
	} {
		mesh += step.add
		touched := m.Set(mesh)
		got := slices.Sorted(maps.Keys(touched.ChangedHosts))
		for binding := range touched.RoutedGateways {
			got = append(got, "bindings "+binding)
		}
		if touched.GatewaysChanged {
			got = append(got, "gateways")
		}
		if touched.SidecarsChanged {
			got = append(got, "sidecars")
		}
		if diff := cmp.Diff(step.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s -want +got\n%s", step.add, diff)
		}
	}
}
