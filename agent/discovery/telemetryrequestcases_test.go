package discovery_test

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

var sidecarObjects = metricsObjects + fmt.Sprintf(stepService, 7490, "$ECHO")

// capturedObjects are sidecarObjects for a proxy with interception, which needs no Sidecar object.
var capturedObjects = strings.Replace(strings.ReplaceAll(withoutFirst(sidecarObjects), "app: pay",
	"app: edge"), "127.0.0.1", capturedAddress, 2)

// askCaptured sends a request to a port of the workload. It returns the status of the response, "0"
// if there is none.
func askCaptured(port int) string {
	return fmt.Sprint(exchangeHTTP(http.MethodGet, "any.test/captured", fmt.Sprintf("%s:%d",
		capturedAddress, port), http.Header{}).status)
}

func withoutFirst(objects string) string {
	_, rest, _ := strings.Cut(objects, "---\n")
	return rest
}

// captureRequests captures the connections of metricsCases with nftables rules, and forwards
// connections to the workload's ports to the applications.
func captureRequests(t *testing.T, app, echo, rpc int) {
	t.Helper()
	redirect(t)
	for _, rule := range []string{"add table ip metrics",
		"add chain ip metrics output { type nat hook output priority -100; }",
		"add rule ip metrics output ip daddr 127.0.0.1 tcp dport { 7490, 7501-7508 } redirect to :15001"} {
		if out, err := exec.Command("nft", rule).CombinedOutput(); err != nil {
			t.Fatalf("nft %s: %v: %s", rule, err, out)
		}
	}
	for port, to := range map[int]int{peerHTTP: app, peerTCP: echo, peerOwn: rpc, peerAuto: echo,
		peerOther: app} {
		listener, err := net.Listen("tcp", fmt.Sprintf("%s:%d", capturedAddress, port))
		must(t, err)
		parts.ForwardConnections(t, listener, fmt.Sprint("127.0.0.1:", to))
	}
}

// entriesOf returns the expected metrics samples of a case that adds count entries to each access
// log.
func entriesOf(count int) []string { return []string{fmt.Sprint(count, " requests_total source")} }

func capturedCases(t *testing.T) []metricsCase {
	t.Helper()
	cases := slices.DeleteFunc(metricsCases(t), func(c metricsCase) bool {
		// Envoy's own connection to its endpoint would be captured, too
		return c.name == "TCP in plain text"
	})
	return append(cases,
		metricsCase{"undeclared port", func() string { return askCaptured(peerOther) }, "200",
			entriesOf(1)},
		metricsCase{"undeclared port, TCP", func() string {
			return exchangeTCP(fmt.Sprintf("%s:%d", capturedAddress, peerAuto), "hello").body
		}, "step:hello\n", entriesOf(1)},
		metricsCase{"unknown address", func() string {
			return exchangeTCP("10.9.0.7:7999", "hello").body
		}, "", entriesOf(1)})
}

// routerObjects route requests at a gateway.
var routerObjects = fmt.Sprintf(stepService[4:], 7499, "$ECHO") + `---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: 7501, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: 7504, name: grpc, protocol: GRPC}, hosts: ["*"]}
  - {port: {number: 7503, name: tcp, protocol: TCP}, hosts: ["*"]}
  - {port: {number: 7490, name: step, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: app, namespace: shop}
spec:
  hosts: [app.test]
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: $APP}
  - {number: 81, name: tcp, protocol: TCP, targetPort: $ECHO}
  - {number: 82, name: grpc, protocol: GRPC, targetPort: $GRPC}
  - {number: 83, name: http-dead, protocol: HTTP, targetPort: $CLOSED}
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: [pay.test]
  gateways: [edge]
  tcp:
  - {match: [{port: 7503}], route: [{destination: {host: app.test, port: {number: 81}}}]}
  - {match: [{port: 7490}], route: [{destination: {host: app.test, port: {number: 81}}}]}
  http:
  - {match: [{uri: {prefix: /test/}}], route: [{destination: {host: app.test, port: {number: 82}}}]}
  - {name: exact, match: [{name: one, uri: {exact: /exact}}], route: [{destination: {host: app.test, port: {number: 80}}}]}
  - {match: [{uri: {regex: "/re.*/x"}}], route: [{destination: {host: app.test, port: {number: 80}}}]}
  - {match: [{uri: {prefix: /rewritten}}], rewrite: {uri: /status/202}, route: [{destination: {host: app.test, port: {number: 80}}}]}
  - {match: [{uri: {prefix: /weighted}}], route: [{destination: {host: app.test, port: {number: 80}}, weight: 100}, {destination: {host: web.test, port: {number: 7491}}, weight: 0}]}
  - {match: [{uri: {prefix: /late}}], timeout: 0.1s, rewrite: {uri: /delay/20s}, route: [{destination: {host: app.test, port: {number: 80}}}]}
  - {match: [{uri: {prefix: /again}}], retries: {attempts: 2, retryOn: 5xx}, rewrite: {uri: /status/503}, route: [{destination: {host: app.test, port: {number: 80}}}]}
  - {match: [{uri: {prefix: /dead}}], route: [{destination: {host: app.test, port: {number: 83}}}]}
  - {match: [{uri: {prefix: /nowhere}}], route: [{destination: {host: nowhere.test, port: {number: 80}}}]}
  - {match: [{uri: {prefix: /abort}}], fault: {abort: {httpStatus: 418, percentage: {value: 100}}}, route: [{destination: {host: app.test, port: {number: 80}}}]}
  - {match: [{uri: {prefix: /direct}}], directResponse: {status: 402}}
  - {match: [{uri: {prefix: /redirect}}], redirect: {uri: /elsewhere}}
  - {match: [{headers: {x-none: {exact: a}}}, {uri: {prefix: /}}], route: [{destination: {host: app.test, port: {number: 80}}}]}
`

func routerCases(t *testing.T) []metricsCase {
	t.Helper()
	var cases []metricsCase
	for path, status := range map[string]string{"/": "200", "/status/404": "404", "/status/503": "503",
		"/exact": "200", "/regular/x": "200", "/rewritten": "202", "/weighted": "200", "/late": "504",
		"/again": "503", "/dead": "503", "/nowhere": "503", "/abort": "418", "/direct": "402",
		"/redirect": "301"} {
		cases = append(cases, metricsCase{path, func() string {
			return getThrough(metricsHTTP, path)
		}, status, entriesOf(1)})
	}
	return append(cases,
		metricsCase{"unknown host", func() string { return getHost(metricsHTTP, "no.test", "/") },
			"404", entriesOf(1)},
		metricsCase{"gRPC", func() string { return callGRPC(t, "unary", 1) }, "OK", entriesOf(1)},
		metricsCase{"gRPC fails", func() string { return callGRPC(t, "denied", 1) },
			"PermissionDenied", entriesOf(1)},
		metricsCase{"TCP", func() string { return talkTCP(metricsTCP) }, "step:hello\n", entriesOf(1)})
}
