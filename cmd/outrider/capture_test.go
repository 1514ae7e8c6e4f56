package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/apitest"
)

func TestCapture_ShowsExplainsTriesAndConfirms(t *testing.T) {
	backend := &apitest.Backend{
		CaptureValue: api.Capture{State: "withdrawn", Reason: "Envoy is gone",
			DNS: &api.CaptureDNS{State: "on", Resolvers: []netip.Addr{
				netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("2001:db8::53")}},
			Rules: "table inet x {\n}\n", Counters: []api.CaptureCounter{{Rule: "capture.outbound_cidrs", Packets: 3, Bytes: 180}}},
		CaptureExplanation: api.CaptureExplanation{Verdict: "outbound",
			ConfigKey: "capture.outbound_cidrs",
			Rule:      "redirect to :15001", Chain: "output", State: "withdrawn"}}
	m := newMachine(t, backend)
	for _, test := range []struct{ command, out string }{
		{"capture show", "capture is withdrawn: Envoy is gone\n" +
			"DNS is on, for queries to 192.0.2.53 2001:db8::53\n\n" +
			"RULE                    PACKETS  BYTES\n" +
			"capture.outbound_cidrs  3        180\n\ntable inet x {\n}\n"},
		{"capture explain 192.0.2.1:80 --user 7 --inbound",
			"captured: goes to Envoy's port 15001 (capture.outbound_cidrs)\n" +
				"chain output: redirect to :15001\n" +
				"The rules are not in force now: capture is withdrawn.\n"},
		{"capture explain 192.0.2.1:53 --udp",
			"captured: goes to Envoy's port 15001 (capture.outbound_cidrs)\n" +
				"chain output: redirect to :15001\n" +
				"The rules are not in force now: capture is withdrawn.\n"},
		{"capture try --for 1s", "capture is trial\n"},
		{"capture confirm", "capture is on\n"},
	} {
		code, out, problems := m.outrider(strings.Fields(test.command)...)
		if diff := cmp.Diff(test.out, out); code != 0 || diff != "" {
			t.Errorf("%s: exit code %d: %s%s", test.command, code, problems, diff)
		}
	}
	want := []api.CaptureExplainRequest{{To: "192.0.2.1:80", UID: 7, Inbound: true},
		{To: "192.0.2.1:53", UDP: true}}
	if diff := cmp.Diff(want, backend.CaptureExplainRequests()); diff != "" {
		t.Error(diff)
	}
	for _, wrong := range []string{"capture", "capture explain", "capture try --for 0s",
		"capture explain 192.0.2.1:80 --user no-such-user"} {
		if code, _, _ := m.outrider(strings.Fields(wrong)...); code != 2 {
			t.Errorf("%s: exit code %d", wrong, code)
		}
	}
}
