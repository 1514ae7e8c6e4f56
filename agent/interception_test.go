package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/config"
)

// If the configuration is invalid at boot, the settings that the last start stored refuse inbound
// connections; they never refuse outbound ones.
func TestKeepClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), closedName)
	s := &capture.Settings{Inbound: capture.Ports{All: true}, ExcludeInbound: []uint16{2222},
		FailOutboundClosed: true, FailInboundClosed: true}
	if err := keepClosed(path, s); err != nil {
		t.Fatal(err)
	}
	want := *s
	want.InboundOnly = true
	if diff := cmp.Diff(&want, lastClosed(path)); diff != "" {
		t.Error(diff)
	}
	for _, open := range []*capture.Settings{nil, {FailOutboundClosed: true}} {
		if err := keepClosed(path, open); err != nil || lastClosed(path) != nil {
			t.Errorf("%+v: %v, %+v", open, err, lastClosed(path))
		}
	}
}

// If [capture] does not fail closed, outrider-capture-early.service logs that it refuses no
// connections.
func TestCaptureEarly_Open(t *testing.T) {
	file := filepath.Join(t.TempDir(), "outrider.toml")
	if err := os.WriteFile(file, []byte("[capture]\nmode = \"redirect\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	options := Options{Config: config.Options{Path: file}, Output: &said}
	if err := RejectConnectionsUntilEnvoyServes(t.Context(), options); err != nil ||
		!strings.Contains(said.String(), "nothing is refused") {
		t.Errorf("%v, %q", err, &said)
	}
}
