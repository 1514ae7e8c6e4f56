package capture

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// closedInbound returns settings with which inbound connections that are not captured are rejected.
func closedInbound(s Settings) Settings {
	s.FailInboundClosed = true
	return s
}

// linkLocal returns a link-local address of this host that other hosts of the link can reach.
func linkLocal(t *testing.T) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addresses {
			if network := a.(*net.IPNet); strings.HasPrefix(i.Name, "ot") &&
				network.IP.IsLinkLocalUnicast() && network.IP.To4() == nil {
				return network.IP.String() + "%eth0"
			}
		}
	}
	t.Fatal("no link-local address")
	return ""
}

// inbound returns what another host receives from port 80 of this host over IPv4, over IPv6 and
// from a link-local address.
func (r *rig) inbound() (answers [3]string) {
	r.t.Helper()
	for i, address := range []string{here[0], here[1], linkLocal(r.t)} {
		to := netip.AddrPortFrom(netip.MustParseAddr(address), 80)
		r.other.RunOn(r.t, func() { answers[i] = dial(r.t, "tcp", netip.Addr{}, to) })
	}
	return answers
}

func (r *rig) inboundIs(want ...string) {
	r.t.Helper()
	if len(want) == 1 {
		want = []string{want[0], want[0], want[0]}
	}
	var last string
	parts.Eventually(r.t, time.Minute, fmt.Sprint("inbound is ", want), func() bool {
		last = fmt.Sprint(r.inbound())
		return last == fmt.Sprint(want)
	})
}

// With FailInboundClosed, the default of an agent with an identity, other hosts reach the
// application only through Envoy, also after Envoy or outrider-capture was killed. While Envoy does
// not serve, outbound connections go direct.
func TestHelper_ClosedInbound(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.apply(closedInbound(captureAll))
	r.inboundIs("refused")
	r.captures(StateClosed)
	r.answers(soon, "far 80")
	r.startEnvoy()
	r.inboundIs("15006")
	r.answers(30*time.Second, "15001")

	r.kill(r.envoy)
	r.inboundIs("refused")
	r.captures(StateClosed)
	r.answers(soon, "far 80")
	r.kill(r.helper)
	if got := r.inbound(); got != [3]string{"refused", "refused", "refused"} {
		t.Errorf("without the helper: %q", got)
	}
	r.start()
	r.captures(StateClosed)
	r.startEnvoy()
	r.inboundIs("15006")
	r.captures(StateOn)
	r.kill(r.envoy)
	r.inboundIs("refused")
	if err := r.client.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	r.inboundIs("here 80")
	const want = "inbound connections go direct, past Envoy: ports 80 8080"
	if log := fmt.Sprint(r.helper.Stderr); strings.Count(log, want) != 1 {
		t.Errorf("the journal: %s", log)
	}
}

// Connections of a family that Envoy does not serve (IPv6, with an istiod without dual stack) are
// rejected. They must not go directly to the application.
func TestHelper_ClosedInboundInAFamilyWithoutEnvoy(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.bootstrap = strings.ReplaceAll(bootstrap, `address: "::"`, "address: 0.0.0.0")
	r.bootstrap = strings.ReplaceAll(r.bootstrap, ", ipv4_compat: true", "")
	r.startEnvoy()
	r.apply(captureAll)
	r.inboundIs("15006", "here 80", "here 80")
	r.apply(closedInbound(captureAll))
	r.inboundIs("15006", "refused", "refused")
}

// With FailInboundClosed, no inbound connection goes directly to the application from before Envoy
// is live until the agent's stop has finished.
func TestController_ClosedInbound(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	envoy := &liveEnvoy{changed: make(chan struct{})}
	envoy.dead.Store(true)
	f := testController(condition.NewRegistry(), closedInbound(captureAll))
	f.Envoy, f.Socket = envoy, r.socket()
	f.ControllerOptions.StateFile = filepath.Join(r.folder, "state.json")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	r.inboundIs("refused")
	r.answers(soon, "far 80")

	r.startEnvoy()
	envoy.dead.Store(false)
	envoy.changed <- struct{}{}
	r.answers(30*time.Second, "15001")
	r.inboundIs("15006")

	envoy.drain(time.Now())
	r.answers(30*time.Second, "far 80")
	r.inboundIs("15006")
	envoy.drain(time.Time{})
	r.answers(30*time.Second, "15001")
	f.EndInterception(t.Context(), 0)
	r.answers(30*time.Second, "far 80")
	r.inboundIs("15006")
	r.kill(r.envoy)
	r.inboundIs("refused")
	cancel()
	<-done
	r.inboundIs("refused")
	f.Stop(t.Context())
	r.inboundIs("here 80")
}

// The end of an unconfirmed trial also ends the rejection of inbound connections: the administrator
// may have no other way to log in.
func TestHelper_ClosedInboundEndsWithATrial(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	trial := closedInbound(captureAll)
	trial.TrialDuration, trial.InboundOnly = 3*time.Second, true
	r.apply(trial)
	r.inboundIs("refused")
	trial.InboundOnly = false // as the agent does once Envoy is live; no new trial starts
	r.apply(trial)
	r.inboundIs("here 80")
	r.captures(StateWithdrawn)
}

// In the state file of an older outrider-capture, fail_closed applies to both directions. An agent
// of an incompatible version gets an error with the fix, and changes nothing.
func TestHelper_OtherVersions(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	old := captureAll
	old.FailOutboundClosed = true
	r.apply(old)
	path := filepath.Join(r.folder, "state.json")
	r.kill(r.helper)
	state, err := json.Marshal(map[string]any{"settings": old}) // no protocol: version 1
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, state, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "", "nft", "flush", "ruleset")
	r.start()
	r.inboundIs("refused")
	r.captures(StateClosed)
	_, err = r.client.call(t.Context(), request{Protocol: protocolVersion + 1, Operation: opApply,
		Settings: &captureNone})
	const fix = `systemctl reload outrider-capture.service`
	if err == nil || !strings.Contains(err.Error(), "protocol version 4 is not supported; this "+
		"outrider-capture has version 3") ||
		!strings.Contains(err.Error(), fix) {
		t.Errorf("a newer agent: %v", err)
	}
	older, err := net.Dial("unix", r.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = older.Close() }()
	if _, err := io.WriteString(older, `{"protocol":2,"number":1,"operation":"stop"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(older)
	if want := `{"number":1,"error":"outrider-capture is of a later version than the agent; ` +
		`restart the agent"}` + "\n"; err != nil || string(answer) != want {
		t.Errorf("an older agent: %q, %v", answer, err)
	}
	r.inboundIs("refused")
}

// If outrider-capture cannot read its settings, it continues to reject what its predecessor
// rejected, until the agent sends settings or stops it.
func TestHelper_UnreadableStateOpensNothing(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	for _, end := range []func(){
		func() { r.apply(captureAll) },
		func() {
			if err := r.client.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		},
	} {
		r.apply(closedInbound(captureAll))
		r.inboundIs("refused")
		r.kill(r.helper)
		if err := os.WriteFile(filepath.Join(r.folder, StateFileName), []byte("{"),
			0o600); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.captures(StateOff) // it compares the tables with its settings first
		if got := r.inbound(); got != [3]string{"refused", "refused", "refused"} {
			t.Errorf("without settings: %q", got)
		}
		end()
		r.inboundIs("here 80")
	}
}

// With TPROXY, and only then, a socket that accepts connections to any address counts as Envoy's.
func TestHelper_ClosedForTransparentSockets(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	acceptAnyAddress(t, serve(t, 9090, "here 9090"))
	r.apply(closedInbound(captureAll))
	r.inboundIs("refused")
	r.other.RunOn(t, func() {
		for _, address := range here {
			to := netip.AddrPortFrom(netip.MustParseAddr(address), 9090)
			if got := dial(t, "tcp", netip.Addr{}, to); got != "refused" {
				t.Errorf("%v: %q", to, got)
			}
		}
	})
}
