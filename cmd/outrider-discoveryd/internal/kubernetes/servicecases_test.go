package kubernetes

import (
	"fmt"
	"strings"
)

// nodes are the Nodes that serviceCases use.
var nodes = []string{
	`metadata: {name: near, labels: {topology.kubernetes.io/region: r1,
  topology.kubernetes.io/zone: z1, topology.istio.io/subzone: s1}}`,
	`metadata: {name: far, labels: {topology.kubernetes.io/region: r2}}`,
}

// pods are the Pods that serviceCases use.
var pods = []struct{ name, node, account, labels string }{
	{"a", "near", "web", "app: web, version: v1, security.istio.io/tlsMode: istio"},
	{"b", "far", "web", "app: web, version: v2"},
	{"c", "near", "other", "app: web, istio-locality: r9.z9.s9"},
}

// of returns the endpoint of a Pod in the YAML of an EndpointSlice.
func of(pod, node, address string) string {
	return fmt.Sprintf("{addresses: [%q], nodeName: %s, conditions: {ready: true}, "+
		"targetRef: {kind: Pod, namespace: services, name: %s}}", address, node, pod)
}

// endpointSlice is the content of an EndpointSlice; ports and endpoints are YAML.
type endpointSlice struct{ family, ports, endpoints string }

func v4(ports string, endpoints ...string) endpointSlice {
	return endpointSlice{"IPv4", ports, strings.Join(endpoints, ", ")}
}

var (
	endpointA = of("a", "near", "10.0.0.1")
	endpointB = of("b", "far", "10.0.0.2")
)

// serviceCases are Services with their EndpointSlices, and the ServiceEntries expected for them.
var serviceCases = []struct {
	name, annotations, spec string
	slices                  []endpointSlice
	want                    []string // expected ServiceEntries, in the form of show
	// the endpoints differ from istiod's on purpose; see docs/decisions/0067
	differs bool
}{
	{
		name:   "plain",
		spec:   "{clusterIP: 10.96.1.1, ports: [{name: http, port: 80, targetPort: 8080}]}",
		slices: []endpointSlice{v4("{name: http, port: 8080}", endpointA, endpointB)},
		want: []string{"service:plain 10.96.1.1 STATIC http/80/HTTP",
			"  10.0.0.1 map[http:8080] r1/z1/s1 web istio",
			"  10.0.0.2 map[http:8080] r2 web disabled"},
	},
	{
		name: "states", // endpoints that are not ready, and one whose Pod is unknown
		spec: "{clusterIP: 10.96.1.2, ports: [{name: grpc-api, port: 80}]}",
		slices: []endpointSlice{v4("{name: grpc-api, port: 80}",
			"{addresses: [10.0.0.3], conditions: {ready: false, serving: true, terminating: true}}",
			"{addresses: [10.0.0.4], conditions: {ready: false}}", "{addresses: [10.0.0.5]}",
			of("absent", "far", "10.0.0.6"))},
		want: []string{"service:states 10.96.1.2 STATIC grpc-api/80/GRPC",
			"  10.0.0.5 map[grpc-api:80]   "},
	},
	{
		name: "named", // Pods with different numbers for the named target port, or without it
		spec: "{clusterIP: 10.96.1.3, ports: [{name: http, port: 80, targetPort: web}, " +
			"{name: admin, port: 81, targetPort: adm, appProtocol: kubernetes.io/h2c}]}",
		slices: []endpointSlice{
			v4("{name: http, port: 8080}, {name: admin, port: 8081}", endpointA),
			v4("{name: http, port: 9090}, {name: admin, port: 9091}", endpointB),
			v4("{name: http, port: 7070}", of("c", "near", "10.0.0.3"))},
		want: []string{"service:named 10.96.1.3 STATIC http/80/HTTP,admin/81/HTTP2",
			"  10.0.0.1 map[admin:8081 http:8080] r1/z1/s1 web istio",
			"  10.0.0.2 map[admin:9091 http:9090] r2 web disabled",
			"service:named:http STATIC http/80/HTTP",
			"  10.0.0.3 map[http:7070] r9/z9/s9 other disabled"},
	},
	{
		name: "headless",
		spec: "{clusterIP: None, selector: {app: web}, " +
			"ports: [{name: tcp-x, port: 80, targetPort: 8080}]}",
		slices: []endpointSlice{v4("{name: tcp-x, port: 8080}", endpointA)},
		want: []string{"service:headless STATIC tcp-x/80/TCP",
			"  10.0.0.1 map[tcp-x:8080] r1/z1/s1 web istio"},
	},
	{
		name: "external",
		spec: "{type: ExternalName, externalName: db.example.com, " +
			"ports: [{name: mysql, port: 3306}]}",
		want: []string{"service:external DNS mysql/3306/MYSQL",
			"  db.example.com map[]   "}, differs: true,
	},
	{
		name: "udp", // a Service without a TCP port has no ServiceEntry
		spec: "{clusterIP: 10.96.1.4, ports: [{name: dns, port: 53, protocol: UDP}]}",
	},
	{
		name: "two-protocols",
		spec: "{clusterIP: 10.96.1.5, ports: [{name: dns, port: 53, protocol: UDP}, " +
			"{name: dns-tcp, port: 53}]}",
		slices: []endpointSlice{v4("{name: dns, port: 53, protocol: UDP}, "+
			"{name: dns-tcp, port: 53}", endpointA)},
		want: []string{"service:two-protocols 10.96.1.5 STATIC dns-tcp/53/TCP",
			"  10.0.0.1 map[dns-tcp:53] r1/z1/s1 web istio"}, differs: true,
	},
	{
		name:   "unnamed",
		spec:   "{clusterIP: 10.96.1.6, ports: [{port: 80}]}",
		slices: []endpointSlice{v4(`{name: "", port: 80}`, endpointA)},
		want: []string{"service:unnamed 10.96.1.6 STATIC /80/",
			"  10.0.0.1 map[:80] r1/z1/s1 web istio"},
	},
	{
		name: "selector", // the Service also selects WorkloadEntries
		spec: "{clusterIP: 10.96.1.7, selector: {app: vm}, ports: [{name: http, port: 80, " +
			"targetPort: 8080}, {name: x, port: 81, targetPort: named}]}",
		slices: []endpointSlice{v4("{name: http, port: 8080}, {name: x, port: 8081}", endpointA)},
		want: []string{"service:selector 10.96.1.7 STATIC http/80/HTTP,x/81/",
			"  10.0.0.1 map[http:8080 x:8081] r1/z1/s1 web istio",
			"service:selector:workloads STATIC http/80/HTTP→8080 map[app:vm]"},
	},
	{
		name:        "preferences",
		annotations: "networking.istio.io/exportTo: 'one, ., ~'",
		spec: "{clusterIP: 10.96.1.8, trafficDistribution: PreferClose, " +
			"ports: [{name: http, port: 80}]}",
		want: []string{"service:preferences 10.96.1.8 STATIC http/80/HTTP [one . ~] " +
			"map[networking.istio.io/traffic-distribution:PreferClose]"},
	},
	{
		name: "dual", // a Pod with addresses of both families is one endpoint
		spec: "{ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6, IPv4], " +
			"clusterIP: 'fd00:10:96::7', clusterIPs: ['fd00:10:96::7', 10.96.1.9], " +
			"ports: [{name: http, port: 80}]}",
		slices: []endpointSlice{v4("{name: http, port: 80}", endpointA, endpointB),
			{"IPv6", "{name: http, port: 80}", of("a", "near", "fd00::1")}},
		want: []string{"service:dual fd00:10:96::7 10.96.1.9 STATIC http/80/HTTP",
			"  10.0.0.2 map[http:80] r2 web disabled",
			"  fd00::1 map[http:80] r1/z1/s1 web istio"}, differs: true,
	},
	{
		name:   "names", // endpoints whose addresses are host names
		spec:   "{clusterIP: 10.96.1.10, ports: [{name: http, port: 80}]}",
		slices: []endpointSlice{{"FQDN", "{name: http, port: 80}", "{addresses: [a.example.com]}"}},
		want:   []string{"service:names 10.96.1.10 STATIC http/80/HTTP"},
	},
}
