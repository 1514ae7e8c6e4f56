package translate_test

import (
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

var sidecar = model.Node{Type: model.Sidecar, Namespace: meshtest.Namespace}

// service is a ServiceEntry to whose spec tests append fields.
const service = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web}
spec:
  hosts: [web.test]
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}]
`

const rule = `
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web}
spec:
  host: web.test
`

const static = service + `
  resolution: STATIC
  endpoints:
  - {address: 10.0.0.1, labels: {version: v1}}
  - {address: 10.0.0.2, labels: {version: v2}, weight: 3}
`

func TestServiceClusters(t *testing.T) {
	for name, test := range map[string]struct{ mesh, cluster, want string }{
		"static endpoints are served over EDS": {static, "outbound|80||web.test", `
type: EDS
connectTimeout: 10s
lbPolicy: LEAST_REQUEST
outlierDetection: null
transportSocket: null`},
		"DNS resolves the host on its target port": {service + `
  resolution: DNS`, "outbound|80||web.test", `
clusterType: {name: envoy.cluster.dns}
loadAssignment:
  endpoints:
  - lbEndpoints:
    - endpoint: {address: {socketAddress: {address: web.test, portValue: 8080}}}`},
		"a subset has a cluster of its own": {static + rule + `
  subsets: [{name: v1, labels: {version: v1}}]`, "outbound|80|v1|web.test", `
type: EDS
edsClusterConfig: {serviceName: outbound|80|v1|web.test}`},
		"a subset overrides the rule section by section": {static + rule + `
  trafficPolicy:
    loadBalancer: {simple: ROUND_ROBIN}
    connectionPool: {tcp: {maxConnections: 7}}
  subsets:
  - {name: v1, labels: {version: v1}, trafficPolicy: {loadBalancer: {simple: RANDOM}}}`,
			"outbound|80|v1|web.test", `
lbPolicy: RANDOM
circuitBreakers: {thresholds: [{maxConnections: 7}]}`},
		"settings of a port replace the others": {static + rule + `
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: 7}}
    portLevelSettings: [{port: {number: 80}, loadBalancer: {simple: RANDOM}}]`,
			"outbound|80||web.test", `
lbPolicy: RANDOM
circuitBreakers: {thresholds: [{maxConnections: 4294967295}]}`},
		"pool limits": {static + rule + `
  trafficPolicy:
    connectionPool:
      tcp: {maxConnections: 7, connectTimeout: 2s}
      http: {http1MaxPendingRequests: 3, http2MaxRequests: 5, maxRetries: 2}`,
			"outbound|80||web.test", `
connectTimeout: 2s
circuitBreakers:
  thresholds: [{maxConnections: 7, maxPendingRequests: 3, maxRequests: 5, maxRetries: 2}]`},
		"outlier detection": {static + rule + `
  trafficPolicy:
    outlierDetection: {consecutive5xxErrors: 3, interval: 5s, baseEjectionTime: 1m}`,
			"outbound|80||web.test", `
outlierDetection: {consecutive5xx: 3, interval: 5s, baseEjectionTime: 60s}
commonLbConfig: {healthyPanicThreshold: {}}`},
		"TLS uses the SNI and verifies it": {static + rule + `
  trafficPolicy:
    tls: {mode: SIMPLE, sni: a.test, subjectAltNames: [b.test], caCertificates: /etc/ca.pem}`,
			"outbound|80||web.test", `
transportSocket:
  name: envoy.transport_sockets.tls
  typedConfig:
    sni: a.test
    commonTlsContext:
      combinedValidationContext:
        validationContextSdsSecretConfig: {name: "file-root:/etc/ca.pem"}`},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := meshtest.New(t, test.mesh)
			s := m.Service("web.test", meshtest.Namespace)
			out := translate.ServiceClusters(m.MeshConfig(), s, m.DestinationRule(s, sidecar),
				sidecar)
			if len(out.Problems) > 0 {
				t.Errorf("%v", out.Problems)
			}
			for _, r := range out.Resources {
				if r.Name == test.cluster && r.Type == resource.ClusterType {
					meshtest.ExpectMessage(t, test.want, meshtest.Message(t, r))
					return
				}
			}
			t.Errorf("no cluster %s", test.cluster)
		})
	}
}

func TestServiceVirtualHost(t *testing.T) {
	const virtualService = static + `
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web}
spec:
  hosts: [web.test]
  http:
`
	for name, test := range map[string]struct{ mesh, want string }{
		"without a VirtualService everything goes to the service": {static, `
name: web.test:80
routes:
- match: {prefix: /}
  route: {cluster: outbound|80||web.test, timeout: 0s, retryPolicy: {numRetries: 2}}`},
		"weights, in order of the routes": {virtualService + `
  - match: [{uri: {exact: /a}}]
    route:
    - {destination: {host: web.test}, weight: 10}
    - {destination: {host: web.test, port: {number: 80}}, weight: 90}
  - route: [{destination: {host: web.test}}]`, `
routes:
- match: {path: /a}
  route: {weightedClusters: {clusters: [{weight: 10}, {weight: 90}]}}
- match: {prefix: /}
  route: {cluster: outbound|80||web.test}`},
		"each match is a route of its own": {virtualService + `
  - match:
    - {uri: {regex: /a.*}, method: {exact: POST}}
    - {headers: {x-test: {prefix: b}}, queryParams: {q: {exact: c}}}
    route: [{destination: {host: web.test}}]`, `
routes:
- match:
    safeRegex: {regex: /a.*}
    headers: [{name: ":method", stringMatch: {exact: POST}}]
- match:
    headers: [{name: x-test, stringMatch: {prefix: b}}]
    queryParameters: [{name: q, stringMatch: {exact: c}}]`},
		"timeout, retries and rewrite": {virtualService + `
  - match: [{uri: {prefix: /old}}]
    rewrite: {uri: /new, authority: other.test}
    timeout: 3s
    retries: {attempts: 4, perTryTimeout: 1s, retryOn: "5xx,503"}
    route: [{destination: {host: web.test}}]`, `
routes:
- route:
    prefixRewrite: /new
    hostRewriteLiteral: other.test
    timeout: 3s
    retryPolicy:
      retryOn: 5xx,retriable-status-codes
      numRetries: 4
      perTryTimeout: 1s
      retriableStatusCodes: [503]`},
		"no retries": {virtualService + `
  - retries: {attempts: 0}
    route: [{destination: {host: web.test}}]`, `
routes:
- route: {retryPolicy: null}`},
		"redirect": {virtualService + `
  - redirect: {uri: /there, authority: other.test, redirectCode: 308}`, `
routes:
- redirect: {pathRedirect: /there, hostRedirect: other.test, responseCode: PERMANENT_REDIRECT}`},
		"direct response": {virtualService + `
  - directResponse: {status: 418, body: {string: tea}}`, `
routes:
- directResponse: {status: 418, body: {inlineString: tea}}`},
		"headers of the route and of its only destination": {virtualService + `
  - headers: {request: {set: {x-a: "1"}, remove: [x-b]}}
    route:
    - destination: {host: web.test}
      headers: {response: {add: {x-c: "2"}}}`, `
routes:
- requestHeadersToAdd:
  - {header: {key: x-a, value: "1"}, appendAction: OVERWRITE_IF_EXISTS_OR_ADD}
  requestHeadersToRemove: [x-b]
  responseHeadersToAdd: [{header: {key: x-c, value: "2"}}]`},
		"mirror of a share of requests": {virtualService + `
  - route: [{destination: {host: web.test}}]
    mirror: {host: web.test}
    mirrorPercentage: {value: 10}`, `
routes:
- route:
    requestMirrorPolicies:
    - cluster: outbound|80||web.test
      runtimeFraction: {defaultValue: {numerator: 100000, denominator: MILLION}}`},
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := meshtest.New(t, test.mesh)
			r := &translate.RouteTranslator{Mesh: m.Mesh, Node: sidecar, Port: 80,
				Gateways:              []string{model.MeshGateway},
				ServiceOnSameListener: func(string) *model.Service { return nil },
				HasOwnVirtualService:  func(string) bool { return false }}
			host, _ := r.ServiceVirtualHost("web.test", m.Service("web.test", meshtest.Namespace),
				m.HTTPVirtualServices("web.test", meshtest.Namespace))
			if len(host.Problems) > 0 {
				t.Errorf("%v", host.Problems)
			}
			var got routev3.VirtualHost
			if err := proto.Unmarshal(host.Encoded, &got); err != nil {
				t.Fatal(err)
			}
			meshtest.ExpectMessage(t, test.want, &got)
		})
	}
}
