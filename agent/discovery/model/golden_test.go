package model_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestWorld_Content compares everything that a proxy can see of a Mesh, the model of a mesh, with
// the expected content.
func TestWorld_Content(t *testing.T) {
	meshtest.Golden(t, "testdata/*.txtar", *update,
		func(t *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			sections := contentOf(t, m.Mesh, proxy)
			var text strings.Builder
			for _, name := range slices.Sorted(maps.Keys(sections)) {
				text.WriteString("== " + name + "\n" + sections[name])
			}
			return text.String()
		})
}

// contentOf describes what a proxy can see of a Mesh, in a section for each host, gateway and
// kind.
func contentOf(t *testing.T, w *model.Mesh, proxy model.Node) map[string]string {
	t.Helper()
	sections := map[string]string{}
	everything := w.EverythingChanged()
	for host := range everything.ChangedHosts {
		sections["host "+host] = hostOf(t, w, proxy, host)
	}
	for gateway := range everything.RoutedGateways {
		text := fmt.Sprintf("there: %t\n", w.HasGateway(gateway))
		for _, r := range w.GatewayVirtualServices(gateway, proxy.Namespace) {
			text += routing(t, r)
		}
		sections["binding "+gateway] = text
	}
	sections["gateways"] = "all:" + list(w.AllGateways()) + "\nof the proxy:" +
		list(w.Gateways(proxy.Labels)) + "\n"
	scope := w.SidecarScope(proxy)
	policy := scope.OutboundPolicy(w)
	if scope.Object != nil {
		sections["scope"] = name(scope.Object) + "\n"
	}
	sections["scope"] += fmt.Sprintf("restricts: %t, shadowed:%s, allow any: %t, proxy: %s %s %d\n",
		scope.RestrictsEgress(), list(scope.Shadowed), policy.AllowAny, policy.EgressProxy.GetHost(),
		policy.EgressProxy.GetSubset(), policy.EgressProxy.GetPort().GetNumber())
	for _, e := range scope.EgressListeners() {
		sections["scope"] += fmt.Sprintf("listener %d %s\n", e.Index, e.GetProtocol())
	}
	peers := w.EffectivePeerAuthentication(proxy)
	sections["peers"] = "default: " + mode(peers.Default) + "\n"
	for _, port := range slices.Sorted(maps.Keys(peers.Ports)) {
		sections["peers"] += fmt.Sprintf("%d: %s\n", port, mode(peers.PortMode(port)))
	}
	for _, s := range peers.Shadowed {
		sections["peers"] += fmt.Sprintf("shadowed: %s by %s\n", name(s.Object), name(s.Winner))
	}
	if policies := w.SecurityPolicies(object.AuthorizationPolicy, proxy); len(policies) > 0 {
		sections["policies"] = list(policies) + "\n"
	}
	sections["filters"] = list(w.EnvoyFilters(proxy)) + "\n"
	return sections
}

func name(o *object.Object) string { return fmt.Sprintf("%s/%s:%d", o.Namespace, o.Name, o.Line) }

func list(objects []*object.Object) string {
	text := ""
	for _, o := range objects {
		text += " " + name(o)
	}
	return text
}

func mode(m model.MutualTLSSetting) string {
	if m.Object == nil {
		return m.Mode.String()
	}
	return fmt.Sprintf("%s by %s %s", m.Mode, name(m.Object), m.Field)
}

// hostOf describes a host: its service with the DestinationRule, and the VirtualServices.
func hostOf(t *testing.T, w *model.Mesh, proxy model.Node, host string) string {
	t.Helper()
	var text strings.Builder
	scope := w.SidecarScope(proxy)
	s := w.Service(host, proxy.Namespace)
	fmt.Fprintf(&text, "reached: %t, like it: %t, in scope: %t, imported: %t\n",
		w.HasOverlappingService(host),
		w.HasMatchingService(host), scope.HasMatchingService(w, host), scope.ImportedService(w, host) != nil)
	if s != nil {
		text.WriteString(service(w, s))
		text.WriteString(rule(w.DestinationRule(s, proxy)))
	}
	ports := scope.ImportedPorts(w, host)
	for _, number := range slices.Sorted(maps.Keys(ports)) {
		at := -1
		if e := scope.EgressListener(number); e != nil {
			at = e.Index
		}
		fmt.Fprintf(&text, "port %d imported by listener %d from %s, addresses %v\n", number, at,
			ports[number].Namespace, w.ServiceAddresses(ports[number], number,
				func(address string) bool {
					return len(w.HTTPVirtualServices(address,
						proxy.Namespace)) > 0
				},
				func(host string) *model.Service { return w.Service(host, proxy.Namespace) }))
	}
	for _, r := range w.HTTPVirtualServices(host, proxy.Namespace) {
		text.WriteString("requests " + routing(t, r))
	}
	for _, e := range scope.EgressListeners() {
		fmt.Fprintf(&text, "listener %d: requests%s\n", e.Index, names(e.HTTPVirtualServices(w,
			host)))
		if s != nil { // hosts without a service receive no connections
			fmt.Fprintf(&text, "connections%s, of the listener%s\n",
				names(w.TCPVirtualServices(host, proxy.Namespace)), names(e.TCPVirtualServices(w,
					host)))
		}
	}
	text.WriteString("rules for it:" + list(w.DestinationRuleObjects(host)) + "\n")
	return text.String()
}

func names(routings []*model.MergedVirtualService) string {
	text := ""
	for _, r := range routings {
		text += " " + name(r.Object)
	}
	return text
}

func service(w *model.Mesh, s *model.Service) string {
	var text strings.Builder
	fmt.Fprintf(&text, "service of %s:%s, oldest %s, accounts %v, addresses %v, plain text %t\n",
		s.Namespace, list(s.Entries), name(s.OldestServiceEntry()), s.IdentitySANs(), s.Addresses(), s.DisablesMutualTLS())
	for i := range s.Ports {
		p := &s.Ports[i]
		fmt.Fprintf(&text, "port %d %s protocol %d of %s, target %d, internal %t, names %t\n",
			p.Number, p.Name, p.Protocol, name(p.Object), p.TargetPort(), p.IsMeshInternal(),
			p.ResolvesNames())
		for _, e := range s.Endpoints(p, nil) {
			fmt.Fprintf(&text, "  %s %d %v %q network %q weight %d", e.Address, e.Port, e.Labels,
				e.Locality, e.Label(model.NetworkLabel), e.Weight)
			if p.IsMeshInternal() {
				fmt.Fprintf(&text, " mutual TLS %t, plain text %t, %s", e.MutualTLS, e.PlainText,
					mode(s.MutualTLSSetting(e)))
			}
			text.WriteString("\n")
		}
		for _, selector := range []map[string]string{{"version": "v1"}, {"version": ""}, {"empty": ""},
			{model.NetworkLabel: "n1"}, {model.TopologyLabels[0]: "eu", "version": "v1"}} {
			fmt.Fprintf(&text, "  %d with %v\n", len(s.Endpoints(p, selector)), selector)
		}
	}
	for _, shadow := range s.Shadowed {
		fmt.Fprintf(&text, "shadowed %s port %d: %q", name(shadow.Object), shadow.Index, shadow.Reason)
		if shadow.Port != nil {
			fmt.Fprintf(&text, " by %s", name(shadow.Port.Object))
		}
		text.WriteString("\n")
	}
	if s.Port(9999) != nil {
		text.WriteString("has port 9999\n")
	}
	return text.String()
}

func rule(r *model.MergedDestinationRule) string {
	if r == nil {
		return "no rule\n"
	}
	text := fmt.Sprintf("rule %s of %s:%s, shadowed policies%s, choices%s\n", r.Host, r.Namespace,
		list(r.Objects), list(r.ShadowedPolicies), list(r.ShadowedSelectingRules))
	if r.PolicyObject != nil {
		text += fmt.Sprintf("  policy of %s: %s\n", name(r.PolicyObject),
			r.Policy.GetLoadBalancer().GetSimple())
	}
	for _, s := range r.Subsets {
		text += fmt.Sprintf("  subset %s %d of %s\n", s.Name, s.Index, name(s.Object))
	}
	for _, s := range r.ShadowedSubsets {
		text += fmt.Sprintf("  shadowed subset %s %d of %s\n", s.Name, s.Index, name(s.Object))
	}
	return text
}

func routing(t *testing.T, r *model.MergedVirtualService) string {
	t.Helper()
	text := fmt.Sprintf("%s hosts %v gateways %v, objects%s\n", name(r.Object), r.Hosts, r.Gateways,
		list(r.Objects()))
	for _, h := range r.HTTP {
		text += fmt.Sprintf("  # http[%d] of %s\n", h.Index, name(h.Object))
		for line := range strings.Lines(meshtest.YAML(t, h.HTTPRoute, nil)) {
			text += "  " + line
		}
	}
	return text + meshtest.FormatProblems(r.Problems)
}

// TestWorld_ChangesEqualNewWorld changes a Mesh step by step. After each step it must equal a new
// Mesh with the same objects, and Apply must report every section (host, gateway or kind) that
// differs from before.
func TestWorld_ChangesEqualNewWorld(t *testing.T) {
	meshtest.EachCase(t, "testdata/*.txtar", func(t *testing.T, m *meshtest.Mesh, proxy model.Node) {
		before := contentOf(t, m.Mesh, proxy)
		for i, text := range m.MutatedTexts() {
			touched := m.SetAllowingWarnings(text)
			after := contentOf(t, m.Mesh, proxy)
			if diff := cmp.Diff(contentOf(t, m.NewModel(), proxy), after); diff != "" {
				t.Fatalf("step %d: -new +changed\n%s\n%s", i, diff, text)
			}
			for _, section := range changed(before, after) {
				if !reported(touched, section) {
					t.Errorf("step %d: %s changed, which is not reported:\n%s", i, section,
						cmp.Diff(before[section], after[section]))
				}
			}
			before = after
		}
	})
}

func changed(before, after map[string]string) []string {
	var names []string
	for name, text := range after {
		if was, ok := before[name]; !ok || was != text {
			names = append(names, name)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// reported reports whether a change affects a section.
func reported(touched model.ChangeSummary, section string) bool {
	kind, name, _ := strings.Cut(section, " ")
	_, host := touched.ChangedHosts[name]
	_, binding := touched.RoutedGateways[name]
	switch kind {
	case "host": // a change of Sidecars may change which hosts are visible
		return host || touched.SidecarsChanged
	case "binding":
		return binding || touched.GatewaysChanged
	case "gateways":
		return touched.GatewaysChanged
	case "scope":
		return touched.SidecarsChanged
	case "peers":
		return touched.PeerAuthenticationsChanged
	case "policies":
		return len(touched.ChangedPolicies) > 0
	}
	return touched.EnvoyFiltersChanged
}

// TestWorld_MeshConfig changes the root namespace and the defaults of exportTo. The Mesh must then
// equal a new one with the same MeshConfig.
func TestWorld_MeshConfig(t *testing.T) {
	meshtest.EachCase(t, "testdata/*.txtar", func(t *testing.T, m *meshtest.Mesh, proxy model.Node) {
		before, config := contentOf(t, m.Mesh, proxy), m.MeshConfig()
		other := mesh.Default()
		other.RootNamespace = "far"
		other.ServiceExportTo, other.VirtualServiceExportTo, other.DestinationRuleExportTo = []string{"."},
			[]string{"."}, []string{"."}
		m.SetMeshConfig(other)
		if diff := cmp.Diff(contentOf(t, m.NewModel(), proxy), contentOf(t, m.Mesh,
			proxy)); diff != "" {
			t.Errorf("-new +changed\n%s", diff)
		}
		touched := m.SetMeshConfig(config)
		if diff := cmp.Diff(before, contentOf(t, m.Mesh, proxy)); diff != "" {
			t.Errorf("-before +after\n%s", diff)
		}
		if diff := cmp.Diff(m.EverythingChanged(), touched); diff != "" {
			t.Errorf("not everything is reported:\n%s", diff)
		}
	})
}
