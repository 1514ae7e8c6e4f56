package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
)

// mutualGateway has servers that require certificates of the mesh. One of them accepts only
// certificates with the SPIFFE ID farID.
const mutualGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  servers:
  - {port: {number: 7601, name: any, protocol: HTTPS}, hosts: ["*"], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: 7602, name: named, protocol: HTTPS}, hosts: ["*"], tls: {mode: ISTIO_MUTUAL, subjectAltNames: ["` + farID + `"]}}
  - {port: {number: 7603, name: tcp, protocol: TLS}, hosts: ["*"], tls: {mode: ISTIO_MUTUAL}}
  - {port: {number: 7604, name: step, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{route: [{destination: {host: a.test}}]}]
  tcp:
  - {match: [{port: 7603}], route: [{destination: {host: a.test}}]}
  - {match: [{port: 7604}], route: [{destination: {host: step.test}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a, namespace: shop}
spec: {hosts: [a.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1, ports: {http: %d}}]}
`

// TestGatewayMutualTLS_AnswersAsWithIstiod connects with several client certificates to servers
// with ISTIO_MUTUAL, on a gateway of this server and on one of a real istiod. Both must accept and
// refuse the same clients.
func TestGatewayMutualTLS_AnswersAsWithIstiod(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	pki := newMeshPKI(t)
	objects := fmt.Sprintf(mutualGateway, (&backend{name: "a"}).serve(t, false)) +
		fmt.Sprintf(stepService, 7400, echoTCP(t, "step"))
	clients := append(peerClients(t, pki), peerClient{name: "named", identity: issueID(t, pki.mesh,
		farID)})
	admitted := map[string]string{"mesh identity": "any tcp", "mesh identity and HTTP": "any tcp",
		"mesh identity without Istio's ALPN": "any tcp", "named": "any tcp named",
		"identity of another trust domain": "any tcp", "identity of an alias": "any tcp",
		"identity of another authority's domain": "any tcp"}
	for _, by := range []string{"outrider", "istiod"} {
		t.Run(by, func(t *testing.T) {
			proxy := startPeer(t, "router", by, "", pki)
			proxy.apply(t, objects, "127.0.0.1:7604")
			for port, name := range map[int]string{7601: "any", 7602: "named", 7603: "tcp"} {
				for _, c := range clients {
					want := "refused"
					if strings.Contains(admitted[c.name], name) {
						want = "200"
					}
					eventually(t, fmt.Sprintf("port %s, %s: %s", name, c.name, want),
						func() (bool, string) {
							got := c.ask(fmt.Sprintf("127.0.0.1:%d", port))
							return got == want, got
						})
				}
			}
		})
	}
}

// TestGatewayMutualTLS_AcceptsNothingWithoutIdentity: a gateway without a certificate of the mesh
// accepts no connection to a server with ISTIO_MUTUAL.
func TestGatewayMutualTLS_AcceptsNothingWithoutIdentity(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, fmt.Sprintf(mutualGateway, 8080)+fmt.Sprintf(stepService, 7400, 9))
	for identity, errors := range map[bool]int{false: 3, true: 0} {
		problems, err := discovery.Check([]string{file}, discovery.CheckOptions{NodeType: "router",
			Namespace: "shop", HasMeshCertificate: identity})
		if err != nil || len(problems) != errors {
			t.Errorf("identity %t: %v %v", identity, problems, err)
		}
	}
}
