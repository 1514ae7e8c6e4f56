package capture

import (
	"net/netip"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
)

// ReachableDirectly reports which ports other hosts can reach with the rules in force, which may
// differ from those of the configuration.
func TestController_Reach(t *testing.T) {
	some := captureSome
	some.FailInboundClosed = true
	for _, test := range []struct {
		name     string
		settings *Settings
		client   *Client
		status   Status
		to       string
		why, fix string // "" = not reached
	}{
		{name: "no interception", to: "192.0.2.1:80", why: `mode is "none"`,
			fix: `mode = "redirect"`},
		{name: "captured", settings: &captureAll, client: &Client{}, to: "192.0.2.1:80",
			status: Status{State: StateOn, CapturedFamilies: AddressFamilies{true, true}}},
		{name: "captured in a trial", settings: &captureAll, client: &Client{}, to: "[fe80::1]:80",
			status: Status{State: StateTrial, CapturedFamilies: AddressFamilies{true, true}}},
		{name: "a family without Envoy", settings: &captureAll, client: &Client{},
			to: "[fe80::1]:80", status: Status{State: StateOn,
				CapturedFamilies: AddressFamilies{IPv4: true}},
			why: "Envoy does not listen on this address family", fix: `fail_inbound = "closed"`},
		{name: "a family without Envoy, closed", settings: new(closedInbound(captureAll)),
			client: &Client{}, to: "[fe80::1]:80",
			status: Status{State: StateOn, CapturedFamilies: AddressFamilies{IPv4: true},
				InboundRejected: true}},
		{name: "withdrawn", settings: &captureAll, client: &Client{}, to: "192.0.2.1:80",
			status: Status{State: StateWithdrawn, Reason: "Envoy drains"},
			why:    "capture is withdrawn: Envoy drains", fix: `fail_inbound = "closed"`},
		{name: "closed", settings: new(closedInbound(captureAll)), client: &Client{},
			to: "192.0.2.1:80", status: Status{State: StateClosed, InboundRejected: true}},
		{name: "closed, but not in force", settings: new(closedInbound(captureAll)),
			client: &Client{}, to: "192.0.2.1:80",
			status: Status{State: StateWithdrawn,
				Reason: "the trial ended"}, why: "the trial ended",
			fix: "outrider capture confirm"},
		{name: "a port that is not captured", settings: &some, client: &Client{},
			to: "192.0.2.1:80", status: Status{State: StateOn,
				CapturedFamilies: AddressFamilies{true, true},
				InboundRejected:  true}, why: "inbound_ports does not contain it", fix: "add it"},
		{name: "no helper", settings: new(closedInbound(captureAll)), to: "192.0.2.1:80",
			status: Status{State: StateWithdrawn, Reason: "connection refused"},
			why:    "outrider-capture does not answer: connection refused",
			fix:    "systemctl status outrider-capture.service"},
		{name: "a helper that is gone leaves what is closed",
			settings: new(closedInbound(captureAll)), to: "192.0.2.1:80",
			status: Status{State: StateClosed, InboundRejected: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := testController(condition.NewRegistry(), Settings{})
			f.Settings, f.status, f.client, f.known = test.settings, test.status, test.client, true
			direct, why, fix := f.ReachableDirectly()(netip.MustParseAddrPort(test.to))
			if direct != (test.why != "") || !strings.Contains(why, test.why) ||
				!strings.Contains(fix, test.fix) {
				t.Errorf("%t, %q, %q", direct, why, fix)
			}
		})
	}
}

// A family whose inbound connections go direct raises a condition; one whose inbound connections
// are rejected appears in the state's reason.
func TestController_FamilyWithoutEnvoy(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	ip(t, "address add 2001:db8::1/128 dev lo nodad")
	for _, closed := range []bool{false, true} {
		board := condition.NewRegistry()
		f := testController(board, captureAll)
		status := Status{State: StateOn, CapturedFamilies: AddressFamilies{IPv4: true},
			InboundRejected: closed}
		f.set(&Client{}, status)
		if all := board.Conditions(); (len(all) == 1 &&
			all[0].Code == ConditionFamilyUncaptured) == closed {
			t.Errorf("closed %t: %+v", closed, all)
		}
		if want := map[bool]string{true: "are refused", false: "go direct"}[closed]; !strings.
			Contains(status.UncapturedFamily(), "over IPv6") ||
			!strings.HasSuffix(status.UncapturedFamily(), want) {
			t.Errorf("closed %t: %q", closed, status.UncapturedFamily())
		}
	}
	if s := (Status{State: StateOn,
		CapturedFamilies: AddressFamilies{IPv6: true}}); s.UncapturedFamily() != "" {
		t.Errorf("without an address of IPv4: %q", s.UncapturedFamily())
	}
}
