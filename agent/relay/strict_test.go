package relay

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	from "outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// peerAuthentications make all ports of the node STRICT except 9000 and 9001.
const peerAuthentications = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: %s}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  portLevelMtls: {9000: {mode: DISABLE}, 9001: {mode: PERMISSIVE}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.test]
  resolution: STATIC
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 90, name: http-a, protocol: HTTP}, {number: 91, name: tcp-b, protocol: TCP}]
  endpoints: [{address: 10.255.0.1, labels: {app: web}, ports: {http: 8080, http-a: 9000, tcp-b: 9001}}]
`

// TestStrict_OfIstiod checks that the relay determines the ports on which istiod's listeners demand
// mutual TLS, once Envoy has accepted the listeners.
func TestStrict_OfIstiod(t *testing.T) {
	i := startIstiod(t)
	write := func(mode string) {
		t.Helper()
		path := filepath.Join(i.folder, "peers.yaml")
		if err := os.WriteFile(path, fmt.Appendf(nil, peerAuthentications, mode),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("STRICT")
	r := startRelay(t, serverAt(i.address), "")
	stream := r.connect(t, true, false)
	node := testNode(t)
	node.Id = "sidecar~10.255.0.1~web.shop~shop.svc.cluster.local"
	node.Metadata.Fields["NAMESPACE"] = structpb.NewStringValue("shop")
	node.Metadata.Fields["INTERCEPTION_MODE"] = structpb.NewStringValue("REDIRECT")
	labels, err := structpb.NewStruct(map[string]any{"app": "web"})
	if err != nil {
		t.Fatal(err)
	}
	node.Metadata.Fields["LABELS"] = structpb.NewStructValue(labels)
	if r.StrictMTLSPorts() != nil {
		t.Error("known before any listener")
	}
	stream.send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: from.ListenerType})
	go func() { // accepts every response as Envoy does
		for {
			var response discoveryv3.DeltaDiscoveryResponse
			select {
			case message := <-stream.received:
				if proto.Unmarshal(message, &response) == nil {
					stream.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: response.TypeUrl,
						ResponseNonce: response.Nonce})
				}
			case <-t.Context().Done():
				return
			}
		}
	}()
	judged := func(want string) {
		t.Helper()
		var got string
		parts.Eventually(t, time.Minute, want, func() bool {
			got = "nothing"
			if strict := r.StrictMTLSPorts(); strict != nil {
				got = ""
				for _, port := range []uint16{8080, 9000, 9001, 22} {
					_, required, own := strict(port)
					got += fmt.Sprintf("%d %t %t, ", port, required, own)
				}
			}
			return got == want
		})
	}
	judged("8080 true true, 9000 false true, 9001 false true, 22 true false, ")
	write("PERMISSIVE")
	judged("nothing")
	write("STRICT")
	judged("8080 true true, 9000 false true, 9001 false true, 22 true false, ")
}
