package view_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

const web = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web}
spec:
  hosts: [web.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}]
`

const database = `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db}
spec:
  hosts: [db.test]
  resolution: STATIC
  ports: [{number: 5432, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.0.0.2}]
`

const gateway = `
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*.test"]}
  - port: {number: 8443, name: https, protocol: HTTPS}
    hosts: [web.test]
    tls: {mode: SIMPLE, serverCertificate: /etc/cert.pem, privateKey: /etc/key.pem}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web}
spec:
  hosts: [web.test]
  gateways: [edge]
  http: [{route: [{destination: {host: web.test}}]}]
`

var (
	sidecar = model.Node{Type: model.Sidecar, Namespace: meshtest.Namespace}
	router  = model.Node{Type: model.Router, Namespace: meshtest.Namespace,
		Labels: map[string]string{"app": "edge"}}
)

func newView(t *testing.T, m *meshtest.Mesh, node model.Node) *view.ProxyView {
	t.Helper()
	return viewOf(t, m, node, view.NewCache())
}

// names returns the resources of a view as texts "Type name".
func names(v *view.ProxyView) []string {
	snapshot, _ := v.Feed().Current()
	var all []string
	for _, typeURL := range snapshot.Types() {
		for name := range snapshot.ByType(typeURL) {
			all = append(all, typeURL[strings.LastIndexByte(typeURL, '.')+1:]+" "+name)
		}
	}
	slices.Sort(all)
	return all
}

func TestView_Resources(t *testing.T) {
	for name, test := range map[string]struct {
		mesh string
		node model.Node
		want map[resource.Key]string
	}{
		"sidecar": {web + database, sidecar, map[resource.Key]string{
			{Type: resource.ClusterType, Name: "outbound|80||web.test"}: `type: EDS`,
			{Type: resource.EndpointType, Name: "outbound|80||web.test"}: `
endpoints:
- lbEndpoints: [{endpoint: {address: {socketAddress: {address: 10.0.0.1, portValue: 80}}}}]`,
			{Type: resource.ClusterType, Name: "outbound|5432||db.test"}: `type: EDS`,
			{Type: resource.EndpointType,
				Name: "outbound|5432||db.test"}: `clusterName: outbound|5432||db.test`,
			{Type: resource.ListenerType, Name: "127.0.0.1_80"}: `
address: {socketAddress: {address: 127.0.0.1, portValue: 80}}
filterChains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typedConfig: {rds: {routeConfigName: "80"}}`,
			{Type: resource.ListenerType, Name: "127.0.0.1_5432"}: `
filterChains:
- filters:
  - name: envoy.filters.network.tcp_proxy
    typedConfig: {cluster: outbound|5432||db.test}`,
			{Type: resource.RouteType, Name: "80"}: `
virtualHosts:
- {name: block_all, domains: ["*"], routes: [{directResponse: {status: 502}}]}
- name: web.test:80
  routes: [{route: {cluster: outbound|80||web.test}}]`,
		}},
		"router": {web + gateway, router, map[resource.Key]string{
			{Type: resource.ListenerType, Name: "0.0.0.0_8080"}: `
filterChains: [{filters: [{typedConfig: {rds: {routeConfigName: http.8080}}}]}]`,
			{Type: resource.ListenerType, Name: "0.0.0.0_8443"}: `
filterChains:
- filterChainMatch: {serverNames: [web.test]}
  filters: [{typedConfig: {rds: {routeConfigName: https.8443.https.edge.shop}}}]
  transportSocket:
    typedConfig:
      commonTlsContext:
        tlsCertificateSdsSecretConfigs: [{name: "file-cert:/etc/cert.pem~/etc/key.pem"}]`,
			{Type: resource.RouteType, Name: "http.8080"}: `
virtualHosts: [{domains: [web.test], routes: [{route: {cluster: outbound|80||web.test}}]}]`,
		}},
		"router that no Gateway selects": {web + gateway,
			model.Node{Type: model.Router, Namespace: meshtest.Namespace},
			map[resource.Key]string{
				{Type: resource.ClusterType, Name: "outbound|80||web.test"}: `type: EDS`}},
	} {
		t.Run(name, func(t *testing.T) {
			m, touched := meshtest.New(t, test.mesh)
			v := newView(t, m, test.node)
			v.Update(touched)
			snapshot, _ := v.Feed().Current()
			for key, want := range test.want {
				if r := snapshot.Get(key); r != nil {
					meshtest.ExpectMessage(t, want, meshtest.Message(t, r))
				} else {
					t.Errorf("no %v among %q", key, names(v))
				}
			}
			for unit, problems := range v.Problems() {
				t.Errorf("%s: %v", unit, problems)
			}
		})
	}
}

// TestView_PublishesOnlyWhatDiffers changes a mesh step by step. Each step must publish exactly the
// resources that the change affects.
func TestView_PublishesOnlyWhatDiffers(t *testing.T) {
	m, touched := meshtest.New(t, web+database)
	v := newView(t, m, sidecar)
	v.Update(touched)
	for _, step := range []struct{ what, mesh, want string }{
		{"an endpoint moves", strings.Replace(web, "10.0.0.1", "10.0.0.9", 1) + database,
			"ClusterLoadAssignment outbound|80||web.test"},
		{"nothing", strings.Replace(web, "10.0.0.1", "10.0.0.9", 1) + database, ""},
		{"a service goes", web + database[:4],
			"Cluster outbound|5432||db.test, ClusterLoadAssignment outbound|5432||db.test, " +
				"ClusterLoadAssignment outbound|80||web.test, Listener 127.0.0.1_5432"},
		{"a VirtualService comes",
			web + strings.Replace(gateway[strings.LastIndex(gateway, "---"):],
				"gateways: [edge]", "gateways: [mesh]", 1), "RouteConfiguration 80"},
		{"its route changes", web + strings.NewReplacer("gateways: [edge]", "gateways: [mesh]",
			"[{route:", "[{timeout: 1s, route:").Replace(
			gateway[strings.LastIndex(gateway, "---"):]), "RouteConfiguration 80"},
	} {
		before, _ := v.Feed().Current()
		v.Update(m.Set(step.mesh))
		keys, ok := v.Feed().ChangedSince(before.Sequence)
		if !ok {
			t.Fatalf("%s: too many snapshots", step.what)
		}
		var got []string
		for _, key := range keys {
			got = append(got, key.Type[strings.LastIndexByte(key.Type, '.')+1:]+" "+key.Name)
		}
		slices.Sort(got)
		if diff := cmp.Diff(step.want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("%s: -want +got\n%s", step.what, diff)
		}
	}
}

func TestView_Problems(t *testing.T) {
	for want, mesh := range map[string]string{
		"no service has the host gone.test": web + `
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: gone}
spec: {host: gone.test, trafficPolicy: {loadBalancer: {simple: RANDOM}}}`,
		"there is no Gateway shop/none": web + `
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web}
spec:
  hosts: [web.test]
  gateways: [none]
  http: [{route: [{destination: {host: web.test}}]}]`,
		"belongs to host web.test of": web + `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: other}
spec:
  hosts: [other.test]
  resolution: STATIC
  ports: [{number: 80, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.0.0.3}]`,
	} {
		m, touched := meshtest.New(t, mesh)
		v := newView(t, m, sidecar)
		v.Update(touched)
		all := slices.Concat(slices.Collect(maps.Values(v.Problems()))...)
		if len(all) != 1 || !strings.Contains(all[0].Message, want) {
			t.Errorf("%v, want one with %q", all, want)
		}
	}
}

func TestView_ReportsPoliciesWithoutInboundListeners(t *testing.T) {
	m, touched := meshtest.New(t, web+`
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: none}
spec: {}
`)
	v := newView(t, m, sidecar)
	v.Update(touched)
	var all []string
	for _, p := range slices.Concat(slices.Collect(maps.Values(v.Problems()))...) {
		all = append(all, p.Message)
	}
	if len(all) != 1 || !strings.Contains(all[0], "not enforced for applications on this host") {
		t.Errorf("%q", all)
	}
}
