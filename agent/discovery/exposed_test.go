package discovery_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/sockdiag"
)

// TestStrict_ReportsApplicationsPastEnvoy: an application that listens on all addresses, and not
// only on the loopback, is reported if Envoy requires mutual TLS.
func TestStrict_ReportsApplicationsPastEnvoy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	for _, c := range []struct {
		address, mode string
		warns         bool
	}{
		{"127.0.0.1:0", "STRICT", false},
		{"0.0.0.0:0", "STRICT", true},
		{"0.0.0.0:0", "PERMISSIVE", false},
		{"[::]:0", "STRICT", true},
	} {
		listener, err := net.Listen("tcp", c.address)
		must(t, err)
		defer listener.Close()
		port := listener.Addr().(*net.TCPAddr).Port
		write(t, file, fmt.Sprintf(onePort, 7301, port, "", c.mode))
		problems, err := discovery.Check([]string{file},
			discovery.CheckOptions{HasMeshCertificate: true,
				ListenAddresses: sockdiag.ListeningAddresses()})
		must(t, err)
		want := fmt.Sprintf("where clients reach it without the mutual TLS that "+
			"PeerAuthentication default/default at %s:", file)
		if len(problems) > 0 != c.warns || c.warns && !strings.Contains(problems[0].Message, want) {
			t.Errorf("%s, %s: %v", c.address, c.mode, problems)
		}
	}
}

// nodePorts declares ports of one host with ServiceEntries and a WorkloadEntry. The formatted mode
// is the mode of mutual TLS of all ports except 9000, where it is DISABLE.
const nodePorts = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default}
spec: {mtls: {mode: %s}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web}
spec:
  selector: {matchLabels: {app: edge}}
  portLevelMtls: {9000: {mode: DISABLE}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web}
spec:
  hosts: [web.test]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 90, name: a, protocol: TCP}]
  endpoints: [{address: %[2]s, ports: {http: 8080, a: 9000}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: selected}
spec:
  hosts: [selected.test]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8081}]
  workloadSelector: {labels: {app: selected}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: here}
spec: {address: %[2]s, labels: {app: selected}}
`

// TestStrict_OfPorts checks for which ports mutual TLS is required, with and without interception.
func TestStrict_OfPorts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, file, fmt.Sprintf(nodePorts, "STRICT", "10.0.0.1"))
	server, changes := start(t, discovery.Options{Files: []string{file}, Namespace: "shop",
		SeparateViewsByAddress: true})
	plain := node("sidecar", "shop", map[string]any{"app": "edge"})
	plain.Id = strings.Replace(plain.Id, "127.0.0.1", "10.0.0.1", 1)
	captured := proto.CloneOf(plain)
	captured.Metadata.Fields["INTERCEPTION_MODE"] = structpb.NewStringValue("REDIRECT")
	const want = "8080 true true, 8081 true true, 9000 false true, 22 true false, "
	for name, n := range map[string]*corev3.Node{"without": plain, "with": captured} {
		if got := strictPorts(t, server, n); got != want {
			t.Errorf("%s interception: %s", name, got)
		}
	}
	if got := strictPorts(t, server, node("router", "shop", nil)); got != "nothing" {
		t.Errorf("a router: %s", got)
	}
	write(t, file, fmt.Sprintf(nodePorts, "PERMISSIVE", "10.0.0.1"))
	changes <- []string{file}
	eventually(t, "nothing is STRICT", func() (bool, string) {
		got := strictPorts(t, server, plain)
		return got == "nothing", got
	})
}

func strictPorts(t *testing.T, server *discovery.Server, n *corev3.Node) string {
	t.Helper()
	strict, err := server.StrictMTLSPorts(n)
	must(t, err)
	if strict == nil {
		return "nothing"
	}
	got := ""
	for _, port := range []uint16{8080, 8081, 9000, 22} {
		by, required, own := strict(port)
		if required != (by.Object() == "PeerAuthentication shop/default") {
			t.Errorf("port %d: %t by %s", port, required, by)
		}
		got += fmt.Sprintf("%d %t %t, ", port, required, own)
	}
	return got
}
