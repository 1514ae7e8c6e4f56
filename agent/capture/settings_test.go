package capture

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/config"
)

func TestNewSettings(t *testing.T) {
	c := &config.Config{}
	c.Capture.Mode = "none"
	if s := NewSettings(c, ""); s != nil {
		t.Errorf("mode none: %+v", s)
	}
	c.Capture = config.Capture{Mode: "redirect", InboundPorts: config.Ports{List: []int{8080}},
		ExcludeInboundPorts: []int{22}, OutboundCIDRs: []string{"10.0.0.1/8", "192.0.2.1", "fd00::/8"},
		ExcludeOutboundCIDRs: []string{"*"}, ExcludeOutboundPorts: []int{25}, Fail: "closed",
		FailInbound: "closed"}
	c.Status.Address, c.Status.ReadyPort = "127.0.0.1:15020", 15021
	c.Telemetry.PrometheusAddress = ""
	c.Capture.DNS, c.DNS.Listen = true, "127.0.0.1:15053"
	got := NewSettings(c, "edge")
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	want := &Settings{Instance: "edge", Inbound: Ports{List: []uint16{8080}},
		ExcludeInbound: []uint16{22}, Outbound: networks([]string{"10.0.0.0/8", "192.0.2.1/32",
			"fd00::/8"}), ExcludeOutbound: networks([]string{"0.0.0.0/0", "::/0"}),
		ExcludeOutboundPorts: []uint16{25}, AgentPorts: []uint16{15020, 15021}, DNSPort: 15053,
		FailOutboundClosed: true, FailInboundClosed: true}
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Error(diff)
	}
}

// With an identity and no other keys, all inbound ports of a sidecar are captured, and connections
// to them are rejected while Envoy does not serve.
func TestNewSettings_InboundWithIdentity(t *testing.T) {
	for _, test := range []struct {
		node, provider, ports, fail string
		all, closed                 bool
	}{
		{"sidecar", "files", `["auto"]`, "auto", true, true},
		{"sidecar", "istiod", `["auto"]`, "open", true, false},
		{"sidecar", "none", `["auto"]`, "auto", false, false},
		{"sidecar", "none", `["*"]`, "closed", true, true},
		{"router", "istiod", `["auto"]`, "auto", false, true},
		{"sidecar", "istiod", `[]`, "auto", false, true},
	} {
		file := filepath.Join(t.TempDir(), "outrider.toml")
		text := fmt.Sprintf("[node]\ntype = %q\n[capture]\nmode = \"redirect\"\ninbound_ports = %s\n"+
			"fail_inbound = %q\n", test.node, test.ports, test.fail)
		if test.provider != "none" {
			text += fmt.Sprintf("[discovery]\naddress = \"istiod:15012\"\n[identity]\ntoken_file = \"t\"\nprovider = %q\n"+
				"cert_file = \"c\"\nkey_file = \"k\"\nroot_ca_file = \"r\"\n", test.provider)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := config.Load(config.Options{Path: file})
		if err != nil {
			t.Fatal(err)
		}
		s := NewSettings(loaded.Config, "")
		if s.Inbound.All != test.all || s.FailInboundClosed != test.closed {
			t.Errorf("%+v: %+v", test, s)
		}
	}
}
