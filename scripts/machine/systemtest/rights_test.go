package systemtest

import (
	"strings"
	"testing"
)

// TestRights_OneRuleForSocketAndBus checks that every user can read the state, and that only root
// and members of group outrider can read and change the configuration. It does so over the private
// socket and over D-Bus, with the real polkit.
func TestRights_OneRuleForSocketAndBus(t *testing.T) {
	t.Parallel()
	h := NewBusHost(t)
	h.RunScript("getent group nobody >/dev/null || groupadd nobody; useradd -M -G outrider member")
	bus := func(arguments ...string) []string {
		return append([]string{"busctl", "--allow-interactive-authorization=no", "call", busName},
			arguments...)
	}
	state := [][]string{
		{"outrider", "status"}, {"outrider", "epochs"}, {"outrider", "log-level"},
		{"outrider", "proxy", "bootstrap"},
		bus(busObject, busManager, "ListEpochs"),
		{"busctl", "get-property", busName, busObject, busManager, "ConfigHash"},
	}
	entitled := [][]string{
		{"outrider", "config", "show"}, {"outrider", "config", "diff"},
		{"outrider", "log-level", "agent=info"}, {"outrider", "reload", "--if-changed"},
		{"outrider", "drain"}, {"outrider", "undrain"},
	}
	for _, c := range changing {
		if c.action != "abort" { // Abort would kill the live Envoy
			entitled = append(entitled, bus(c.arguments...))
		}
	}
	for _, user := range []string{"root", "member", "nobody"} {
		as := []string{"--reuid=" + user, "--regid=" + user, "--init-groups"}
		for _, command := range state {
			if out, err := h.Run(t.Context(), "setpriv", append(as, command...)...); err != nil {
				t.Errorf("%s may not %v: %s", user, command, out)
			}
		}
		for _, command := range entitled {
			out, err := h.Run(t.Context(), "setpriv", append(as, command...)...)
			if allowed := err == nil; allowed != (user != "nobody") {
				t.Errorf("%s, %v: allowed %v: %s", user, command, allowed, out)
			}
			if err != nil && command[0] == "outrider" && !strings.Contains(err.Error(),
				"exit status 4") {
				t.Errorf("%s, %v: %v", user, command, err)
			}
		}
	}
	h.MustServe()
}
