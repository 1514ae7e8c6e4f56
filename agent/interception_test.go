package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
)

func TestCaptureSettings(t *testing.T) {
	c := &config.Config{}
	c.Capture.Mode = "none"
	if s := captureSettings(c, ""); s != nil {
		t.Errorf("mode none: %+v", s)
	}
	c.Capture = config.Capture{Mode: "redirect", InboundPorts: config.Ports{List: []int{8080}},
		ExcludeInboundPorts: []int{22}, OutboundCIDRs: []string{"10.0.0.1/8", "192.0.2.1", "fd00::/8"},
		ExcludeOutboundCIDRs: []string{"*"}, ExcludeOutboundPorts: []int{25}, Fail: "closed"}
	c.Status.Address, c.Status.ReadyPort = "127.0.0.1:15020", 15021
	c.Telemetry.PrometheusAddress = ""
	c.Capture.DNS, c.DNS.Listen = true, "127.0.0.1:15053"
	got := captureSettings(c, "edge")
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	want := &capture.Settings{Instance: "edge", Inbound: capture.Ports{List: []uint16{8080}},
		ExcludeInbound: []uint16{22}, Outbound: networks([]string{"10.0.0.0/8", "192.0.2.1/32",
			"fd00::/8"}), ExcludeOutbound: networks([]string{"0.0.0.0/0", "::/0"}),
		ExcludeOutboundPorts: []uint16{25}, OwnPorts: []uint16{15020, 15021}, DNSPort: 15053,
		FailClosed: true}
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, got, same); diff != "" {
		t.Error(diff)
	}
}

// outrider-capture-early.service says why it refuses nothing.
func TestCaptureEarly_Open(t *testing.T) {
	file := filepath.Join(t.TempDir(), "outrider.toml")
	if err := os.WriteFile(file, []byte("[capture]\nmode = \"redirect\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	options := Options{Config: config.Options{Path: file}, Output: &said}
	if err := CaptureEarly(t.Context(), options); err != nil ||
		!strings.Contains(said.String(), "nothing is refused") {
		t.Errorf("%v, %q", err, &said)
	}
}
