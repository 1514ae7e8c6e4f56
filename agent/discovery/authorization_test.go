package discovery_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

const (
	// port of the first of accessCases; the other cases have the ports after it
	firstAccessPort = 7501
	accessMarker    = 7490
)

// accessPolicies are policies in addition to those of the cases. None of them denies anything.
const accessPolicies = `---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: dry, namespace: shop, annotations: {istio.io/dry-run: "true"}}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/dry]}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: audit, namespace: shop}
spec: {action: AUDIT, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: other-workload, namespace: shop}
spec: {action: DENY, selector: {matchLabels: {app: other}}, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: other-namespace, namespace: bank}
spec: {action: DENY, rules: [{}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: gateway, namespace: shop}
spec: {action: DENY, targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}], rules: [{}]}
`

// accessObjects returns the objects of all cases for a type of proxy, sidecar or router. Requests
// that are allowed are forwarded to the port backend.
func accessObjects(kind string, backend int) string {
	var allow, deny, listeners []string
	for i, c := range accessCases {
		port := firstAccessPort + i
		rule := strings.NewReplacer("ANY", fmt.Sprintf(`to: [{operation: {ports: ["%d"]}}]`, port),
			"PORT", fmt.Sprintf(`"%d"`, port))
		text := "  - " + rule.Replace(c.rule) + "\n"
		if c.action == "DENY" {
			deny = append(deny, text)
			text = fmt.Sprintf("  - {to: [{operation: {ports: [\"%d\"]}}]}\n", port)
		}
		allow = append(allow, text)
		protocol := "HTTP"
		if c.tcp {
			protocol = "TCP"
		}
		if kind == "router" {
			listeners = append(listeners, fmt.Sprintf("  - {port: {number: %[1]d, protocol: %[2]s, "+
				"name: p%[1]d}, hosts: [\"*\"]}\n", port, protocol))
		} else {
			listeners = append(listeners, fmt.Sprintf("  - {port: {number: %[1]d, protocol: %[2]s, "+
				"name: p%[1]d}, bind: 127.0.0.1, defaultEndpoint: \"127.0.0.1:%[3]d\"}\n", port,
				protocol, backend))
		}
	}
	policy := func(name, namespace, action string, rules []string) string {
		return "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " +
			name + ", namespace: " + namespace + "}\nspec:\n  action: " + action +
			"\n  selector: {matchLabels: {app: edge}}\n  rules:\n" + strings.Join(rules, "")
	}
	half := len(allow) / 2
	policies := policy("allow", "shop", "ALLOW", append(allow[half:],
		fmt.Sprintf("  - {to: [{operation: {ports: [\"%d\"]}}]}\n", accessMarker))) +
		policy("allow", "istio-system", "ALLOW", allow[:half]) + policy("deny", "shop", "DENY", deny)
	if kind == "router" {
		return fmt.Sprintf(accessRouter, accessMarker, strings.Join(listeners, ""), backend) + policies
	}
	return "apiVersion: networking.istio.io/v1\nkind: Sidecar\n" +
		"metadata: {name: default, namespace: shop}\nspec:\n  ingress:\n" +
		strings.Join(listeners, "") + policies
}

// accessRouter forwards the requests and connections on a gateway's ports to a backend.
const accessRouter = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: %[1]d, protocol: TCP, name: marker}, hosts: [marker.test]}
%[2]s---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{route: [{destination: {host: backend.test, port: {number: 80}}}]}]
  tcp:
  - {match: [{port: %[1]d}], route: [{destination: {host: step.test, port: {number: %[1]d}}}]}
  - route: [{destination: {host: backend.test, port: {number: 80}}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: backend, namespace: shop}
spec: {hosts: [backend.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]}
`

// accessRequest is one request in a case.
type accessRequest struct {
	want, client, text string
}

// parseAccess parses "STATUS [CLIENT@]METHOD PATH [NAME=VALUE]…". A NAME of "host" sets the Host
// header, and each other NAME adds a header.
func parseAccess(text string) accessRequest {
	words := strings.Fields(text)
	client, method, ok := strings.Cut(words[1], "@")
	if !ok {
		client, method = "plain", words[1]
	}
	host, headers := "any.test", ""
	for _, word := range words[3:] {
		name, value, _ := strings.Cut(word, "=")
		if name == "host" {
			host = value
		} else {
			headers += name + ": " + value + "\r\n"
		}
	}
	return accessRequest{words[0], client, fmt.Sprintf(
		"%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: 0\r\n%s\r\n", method,
		words[2], host, headers)}
}

// accessClients returns the clients of the cases by name.
func accessClients(t *testing.T, pki meshPKI) map[string]peerClient {
	t.Helper()
	clients := map[string]peerClient{"plain": {plain: true}}
	for name, id := range map[string]string{"bank": "spiffe://cluster.local/ns/bank/sa/client",
		"alias": "spiffe://alias.example/ns/bank/sa/client",
		"shop":  "spiffe://cluster.local/ns/shop/sa/web",
		"named": "spiffe://cluster.local/ns/bank/sa/client"} {
		c := peerClient{identity: issueID(t, pki.mesh, id),
			alpn: []string{"istio-http/1.1", "istio"}}
		if name == "named" {
			c.sni = "sni.test"
		}
		clients[name] = c
	}
	return clients
}

// TestAuthorizationPolicy_AnswersAsWithIstiod makes requests as several clients to a proxy with
// policies, and to one that a real istiod configures. Both must answer as expected.
func TestAuthorizationPolicy_AnswersAsWithIstiod(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	pki := newMeshPKI(t)
	clients := accessClients(t, pki)
	redirect(t)
	a, echo := (&backend{name: "a"}).serve(t, false), echoTCP(t, "step")
	meshConfig := "trustDomainAliases: [alias.example]\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}\n" +
		"defaultConfig: {gatewayTopology: {numTrustedProxies: 1}}\n"
	for _, kind := range []string{"sidecar", "REDIRECT", "router"} {
		address, marker := "127.0.0.1", fmt.Sprintf(stepService, accessMarker, echo)
		at := fmt.Sprintf("127.0.0.1:%d", accessMarker)
		if kind == "REDIRECT" {
			address, at = capturedAddress, fmt.Sprintf("10.9.1.1:%d", accessMarker)
			marker = strings.Replace(marker, "resolution", "addresses: [10.9.1.1], resolution", 1)
		}
		objects := accessObjects(kind, a) + accessPolicies + marker
		for _, by := range []string{"outrider", "istiod"} {
			t.Run(kind+"/"+by, func(t *testing.T) {
				proxy := startPeer(t, kind, by, meshConfig, pki)
				proxy.apply(t, objects, at)
				if proxy.server != nil {
					for _, p := range proxy.server.Problems() {
						t.Logf("problem: %s", p)
					}
				}
				for i, c := range accessCases {
					c.expect(t, clients, kind, fmt.Sprintf("%s:%d", address, firstAccessPort+i))
				}
			})
		}
	}
}

// expect sends the requests of a case and compares the statuses. For a gateway, it skips requests
// of clients with a mesh certificate.
func (c accessCase) expect(t *testing.T, clients map[string]peerClient, kind, address string) {
	t.Helper()
	for _, text := range c.requests {
		r := parseAccess(text)
		client := clients[r.client]
		if kind == "router" && !client.plain {
			continue
		}
		got := ""
		if !parts.Poll(3*time.Second, func() bool {
			got = client.send(address, r.text)
			return got == r.want
		}) {
			t.Errorf("%s %s: %s: %s", c.action, c.rule, text, got)
		}
	}
}
