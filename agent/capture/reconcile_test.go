package capture

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// If units cannot be searched for, the capture of the units found before continues.
func TestHelper_KeepsUnitsAfterAFailedSearch(t *testing.T) {
	watch, err := newUnitWatch()
	if err != nil {
		t.Fatal(err)
	}
	watch.root = filepath.Join(t.TempDir(), "none")
	running := []Unit{{Name: "web.service"}}
	h := &helper{units: watch, running: running}
	h.log, h.Settings = t.Output(), &Settings{Units: []string{"web.service"}}
	if h.findUnits(); !slices.Equal(h.running, running) {
		t.Errorf("the units are %v", h.running)
	}
}

// If outrider-capture cannot read its settings after an upgrade, it removes the rules, because it
// cannot manage them.
func TestHelper_UpgradeWithoutStateWithdraws(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	r.apply(captureAll)
	r.answers(30*time.Second, "15001")
	if err := os.Remove(filepath.Join(r.folder, "state.json")); err != nil {
		t.Fatal(err)
	}
	if err := r.helper.Process.Signal(unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	<-r.client.Done()
	r.answers(30*time.Second, "far 80")
	client, err := Dial(t.Context(), r.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if s, err := client.Status(t.Context()); err != nil || s.State != StateOff {
		t.Errorf("%+v, %v", s, err)
	}
}

// If the kernel refuses the table that rejects connections, the status contains the error, and the
// journal contains it once.
func TestHelper_ReportsAFailedRefusal(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	foreign, err := newOwnerSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	if err := foreign.install(&Table{Name: closedName(""), OwnedByHelper: true}); err != nil {
		t.Fatal(err)
	}
	closed := captureTransparent
	closed.FailOutboundClosed = true
	r.apply(closed)
	const fault = "cannot change what is refused"
	for range 5 { // each request makes outrider-capture try again
		if s, err := r.client.Status(t.Context()); err != nil || s.OutboundRejected ||
			!strings.Contains(s.Reason, fault) || strings.Contains(s.Reason, "tproxy.conf") {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	if log := fmt.Sprint(r.helper.Stderr); strings.Count(log, fault) != 1 {
		t.Errorf("the journal: %s", log)
	}
	parts.RunAs(t, envoyUser, func() { serve(t, OutboundPort, "15001") })
	if s, err := r.client.Status(t.Context()); err != nil ||
		!strings.Contains(s.Reason, "tproxy.conf") {
		t.Errorf("Envoy cannot listen on 15006: %+v, %v", s, err)
	}
}
