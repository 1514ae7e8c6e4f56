package translate_test

import (
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestClusters compares the clusters and endpoints of services with golden files.
func TestClusters(t *testing.T) {
	meshtest.Golden(t, "testdata/clusters/*.txtar", *update,
		func(t *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			return clusters(t, m, proxy, func(*resource.Resource) proto.Message { return nil })
		})
}

// TestRules compares with golden files how DestinationRules, MeshConfig and the proxy change the
// clusters of services, and which secrets the clusters refer to.
func TestRules(t *testing.T) {
	meshtest.Golden(t, "testdata/rules/*.txtar", *update,
		func(t *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			unchanged := map[string]proto.Message{}
			for _, host := range m.ServiceHosts() {
				service := m.Service(host, proxy.Namespace)
				for _, r := range translate.ServiceClusters(mesh.Default(), service,
					withoutPolicies(m.DestinationRule(service, proxy)), sidecar).Resources {
					unchanged[r.Type+r.Name] = meshtest.Message(t, r)
				}
			}
			return clusters(t, m, proxy, func(r *resource.Resource) proto.Message {
				return unchanged[r.Type+r.Name]
			})
		})
}

func withoutPolicies(rule *model.MergedDestinationRule) *model.MergedDestinationRule {
	if rule == nil {
		return nil
	}
	bare := &model.MergedDestinationRule{Host: rule.Host, Objects: rule.Objects}
	for _, s := range rule.Subsets {
		bare.Subsets = append(bare.Subsets, model.Subset{Object: s.Object,
			Subset: &networking.Subset{Name: s.Name, Labels: s.Labels}})
	}
	return bare
}

// TestRuleProblems compares the problems of services and their DestinationRules with golden files.
func TestRuleProblems(t *testing.T) {
	meshtest.Golden(t, "testdata/ruleproblems/*.txtar", *update,
		func(_ *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			text := ""
			for _, host := range m.ServiceHosts() {
				service := m.Service(host, proxy.Namespace)
				text += meshtest.FormatProblems(translate.ServiceClusters(m.MeshConfig(), service,
					m.DestinationRule(service, proxy), proxy).Problems)
			}
			return text
		})
}

// clusters translates all services, and returns as YAML how each resource differs from the message
// that unchanged returns for it.
func clusters(t *testing.T, m *meshtest.Mesh, proxy model.Node,
	unchanged func(*resource.Resource) proto.Message) string {
	t.Helper()
	var text strings.Builder
	for _, host := range m.ServiceHosts() {
		service := m.Service(host, proxy.Namespace)
		out := translate.ServiceClusters(m.MeshConfig(), service, m.DestinationRule(service, proxy),
			proxy)
		for _, r := range out.Resources {
			if yaml := meshtest.YAML(t, meshtest.Message(t, r), unchanged(r)); yaml != "" {
				text.WriteString(meshtest.ResourceTitle(r) + yaml)
			}
		}
		byName := func(a, b translate.ConfiguredSecret) int { return strings.Compare(a.Name(), b.Name()) }
		for _, s := range slices.SortedFunc(maps.Keys(out.Secrets), byName) {
			text.WriteString("# secret " + s.Name() + meshtest.FormatOrigins(out.Secrets[s]) + "\n")
		}
		text.WriteString(meshtest.FormatProblems(out.Problems))
	}
	return text.String()
}

// TestVirtualHosts compares with golden files the virtual hosts of all services and VirtualServices
// for port 80 of a sidecar.
func TestVirtualHosts(t *testing.T) {
	meshtest.Golden(t, "testdata/routes/*.txtar", *update,
		func(t *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			r := &translate.RouteTranslator{Mesh: m.Mesh, Node: proxy, Port: 80,
				Gateways:              []string{model.MeshGateway},
				ServiceOnSameListener: func(string) *model.Service { return nil },
				HasOwnVirtualService:  func(string) bool { return false }}
			var text strings.Builder
			for _, host := range hosts(m) {
				out, by := r.ServiceVirtualHost(host, m.Service(host, proxy.Namespace),
					m.HTTPVirtualServices(host, proxy.Namespace))
				if by != nil {
					text.WriteString("# by " + by.Object.String() + "\n")
				}
				text.WriteString(virtualHost(t, out))
			}
			return text.String()
		})
}

// hosts returns the hosts of services and VirtualServices, sorted.
func hosts(m *meshtest.Mesh) []string {
	all := slices.Clone(m.ServiceHosts())
	for o := range m.VirtualServices() {
		for _, host := range o.Spec.(interface{ GetHosts() []string }).GetHosts() {
			all = append(all, model.FullName(host, o.Namespace, m.Domain()))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// virtualHost returns a virtual host as YAML, with its origins, the origins of its routes, the
// hosts that its translation read, and its problems.
func virtualHost(t *testing.T, v *translate.VirtualHost) string {
	t.Helper()
	if v == nil {
		return "# none\n"
	}
	var message routev3.VirtualHost
	if err := proto.Unmarshal(v.Encoded, &message); err != nil {
		t.Fatal(err)
	}
	text := "# " + v.Host + meshtest.FormatOrigins(v.Origins) + "\n"
	if v.RouteOrigins != nil {
		text += "# routes" + meshtest.FormatOrigins(v.RouteOrigins) + "\n"
	}
	return text + "# reads " + strings.Join(v.HostsRead, ", ") + "\n" + meshtest.YAML(t, &message, nil) +
		meshtest.FormatProblems(v.Problems)
}

// TestServiceConnections compares with golden files the filter chains for connections to the ports
// of services.
func TestServiceConnections(t *testing.T) {
	meshtest.Golden(t, "testdata/connections/*.txtar", *update,
		func(t *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			var text strings.Builder
			for _, host := range m.ServiceHosts() {
				service := m.Service(host, proxy.Namespace)
				for i := range service.Ports {
					port := &service.Ports[i]
					r := &translate.RouteTranslator{Mesh: m.Mesh, Node: proxy, Port: port.Number,
						Gateways: []string{model.MeshGateway}}
					out := r.ServiceConnectionRoutes(service, port, m.TCPVirtualServices(host,
						proxy.Namespace))
					text.WriteString("# " + host + meshtest.FormatOrigins(out.Origins()) + "\n# reads " +
						strings.Join(out.HostsRead, ", ") + "\n")
					text.WriteString(chains(t, out.Routes))
					text.WriteString(meshtest.FormatProblems(out.Problems))
				}
			}
			return text.String()
		})
}

func chains(t *testing.T, routes []translate.ConnectionRoute) string {
	t.Helper()
	var text strings.Builder
	for _, route := range routes {
		chain, err := route.FilterChain(route.Field, &translate.Telemetry{})
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("# " + route.Object.String() + " " + route.Field + "\n" +
			meshtest.YAML(t, chain, nil))
	}
	return text.String()
}

// TestGateways compares with golden files the listener of the first Gateway's servers, the secrets
// to which it refers, the virtual hosts of its VirtualServices, and the connections that these
// forward.
func TestGateways(t *testing.T) {
	meshtest.Golden(t, "testdata/gateways/*.txtar", *update,
		func(t *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			gateway := m.AllGateways()[0]
			servers := gateway.Spec.(*networking.Gateway).Servers
			var text strings.Builder
			var filters []translate.GatewayFilterChain
			for _, s := range servers {
				chain := translate.GatewayFilterChain{Name: s.Port.Name, ServerNames: s.Hosts,
					TLS:        s.Tls,
					StatPrefix: s.Name}
				switch {
				case s.Port.Protocol == "TLS" &&
					s.Tls.Mode == networking.ServerTLSSettings_PASSTHROUGH:
					chain.TLS = nil
				case s.Port.Protocol == "HTTP":
					chain.RouteName = translate.HTTPRouteName(s.Port.Number, s.Bind)
				case s.Port.Protocol == "HTTPS":
					chain.RouteName = translate.HTTPSRouteName(s.Port.Number, s.Port.Name,
						gateway.Name, gateway.Namespace, s.Bind)
				}
				filters = append(filters, chain)
				for _, secret := range translate.ServerSecrets(s.Tls, m.MeshConfig()) {
					text.WriteString("# " + s.Port.Name + " needs " + secret.Name() + "\n")
				}
			}
			r, err := translate.GatewayListener(servers[0].Bind, servers[0].Port.Number, filters,
				m.MeshConfig(), translate.SecurityFilters{}, nil, &translate.Telemetry{},
				gateway.Origin(), gateway.Origin())
			if err != nil {
				t.Fatal(err)
			}
			text.WriteString(meshtest.ResourceTitle(r) + meshtest.YAML(t, meshtest.Message(t, r), nil))
			router := &translate.RouteTranslator{Mesh: m.Mesh, Node: proxy,
				Port:     servers[0].Port.Number,
				Gateways: []string{model.GatewayName(gateway.Name, gateway.Namespace)}}
			routings := m.GatewayVirtualServices(router.Gateways[0], "")
			for _, host := range hosts(m) {
				text.WriteString(virtualHost(t, router.GatewayVirtualHost(host, routings,
					servers[0].Tls.GetHttpsRedirect())))
			}
			for _, routing := range routings {
				text.WriteString(chains(t, router.TCPRoutes(routing)))
				text.WriteString(chains(t, router.TLSRoutes(routing)))
				problems, _ := router.TakeFindings()
				text.WriteString(meshtest.FormatProblems(problems))
			}
			return text.String()
		})
}
