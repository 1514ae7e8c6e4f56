package discovery_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
)

func (p peer) explain(t *testing.T, request explain.Request) discovery.Explanation {
	t.Helper()
	node := nodeOf(t, p.kind)
	node.Metadata.Fields["OUTRIDER_IDENTITY"] = structpb.NewStringValue("true")
	said, err := p.server.Explain(node, request, explain.EnvoyState{SPIFFEID: vmID})
	must(t, err)
	return said
}

// explainPlain checks the explanation of a plain text request: it must be accepted unless the mode
// of mutual TLS is STRICT.
func (p peer) explainPlain(t *testing.T, address string, port int, mode string) {
	t.Helper()
	if p.server == nil {
		return
	}
	said := p.explain(t, explain.Request{Host: address, Port: uint32(port),
		DestinationAddress: netip.MustParseAddr(address)})
	if mode != "STRICT" && said.Outcome == explain.OutcomeForwarded ||
		mode == "STRICT" && said.Outcome == explain.OutcomeConnectionClosed &&
			strings.Contains(said.Reason, "mesh.yaml:") {
		return
	}
	t.Errorf("port %d with %s is explained as %s", port, mode, described(said))
}

// explainConnection checks that an explanation says whether a request to a service was sent with
// mutual TLS. The explanation may also say that the PeerAuthentication of the endpoint refuses the
// request, although the backend of the test accepts every connection.
func (p peer) explainConnection(t *testing.T, port int, host, got string) {
	t.Helper()
	if p.server == nil || got == failure {
		return
	}
	said := p.explain(t, explain.Request{Host: host + ".test", Port: uint32(port)})
	text := described(said)
	encrypted := strings.Contains(text, "cluster.local/ns/shop/sa/vm") &&
		(strings.Contains(text, ", mutual TLS") || !strings.Contains(text, "to others in plain text"))
	if encrypted != strings.HasPrefix(got, mutual) ||
		said.Reason != "" && !strings.Contains(said.Reason, "PeerAuthentication") {
		t.Errorf("%s: %s is explained as %s", host, got, text)
	}
}

// TestExplain_NamesMutualTLSThatDoesNotFit explains requests to endpoints whose PeerAuthentication
// does not accept the proxy's connections.
func TestExplain_NamesMutualTLSThatDoesNotFit(t *testing.T) {
	disable := "tls: {mode: DISABLE}"
	for name, c := range map[string]struct {
		mutualCase
		identity                bool
		outcome                 explain.Outcome
		reason, unknown, effect string // parts of the expected answer
	}{
		"fits": {mutualCase{endpoint: withAccount, more: peerPolicy("p", "bank", "", "STRICT", "")},
			true, explain.OutcomeForwarded, "", "", "presents its certificate of the mesh, expects a " +
				"certificate by ROOTCA of spiffe://cluster.local/ns/bank/sa/far"},
		"disabled by rule": {mutualCase{endpoint: withAccount, rule: disable,
			more: peerPolicy("p", "bank", "", "STRICT", "")}, true, explain.OutcomeLocalReply,
			"requires mutual TLS by", "", "in plain text"},
		"no identity": {mutualCase{endpoint: withAccount,
			more: peerPolicy("p", "bank", "", "STRICT", "")}, false, explain.OutcomeLocalReply,
			"requires mutual TLS by", "", "in plain text"},
		"unknown endpoint": {mutualCase{more: peerPolicy("p", "bank", "", "STRICT", "")}, true,
			explain.OutcomeForwarded, "", "requires mutual TLS by", "in plain text"},
		"external": {mutualCase{entry: "location: MESH_EXTERNAL",
			more: peerPolicy("p", "bank", "", "STRICT", "")}, true, explain.OutcomeForwarded, "", "",
			"in plain text"},
		"server in plain text": {mutualCase{endpoint: withAccount, rule: "tls: {mode: ISTIO_MUTUAL}",
			more: peerPolicy("p", "bank", "", "DISABLE", "")}, true, explain.OutcomeLocalReply,
			"does not end mutual TLS by", "", "presents its certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "mesh.yaml")
			c.name = "far"
			write(t, file, c.yaml(80, 8080))
			said, err := discovery.Explain([]string{file}, discovery.CheckOptions{
				HasMeshCertificate: c.identity}, explain.Request{Host: "far.test", Port: 80})
			must(t, err)
			text := described(said)
			by := fmt.Sprintf("%s:", file)
			if said.Outcome != c.outcome || !strings.Contains(text, c.effect) ||
				!strings.Contains(said.Reason, c.reason) || c.reason != "" &&
				!(strings.Contains(said.Reason, by) && said.Status == 503) ||
				(c.unknown == "") != (len(said.UnknownFacts) == 0) ||
				!strings.Contains(fmt.Sprint(said.UnknownFacts), c.unknown) {
				t.Error(text)
			}
		})
	}
}
