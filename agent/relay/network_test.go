package relay

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/parts"
)

// elsewhere makes a server that listens on this host reachable through a port of another host. It
// returns the address on the other host.
func elsewhere(t *testing.T, host *parts.OtherHost, address string) string {
	t.Helper()
	var listener net.Listener
	host.RunOn(t, func() {
		var err error
		if listener, err = net.Listen("tcp", net.JoinHostPort(host.Address, "0")); err != nil {
			t.Fatal(err)
		}
	})
	parts.ForwardConnections(t, listener, address)
	return listener.Addr().String()
}

// TestIstiod_BadNetworks checks that no request to Envoy fails while istiod's host does not answer
// or the network loses packets, and that changes arrive within two seconds after the network works
// again.
func TestIstiod_BadNetworks(t *testing.T) {
	for name, rule := range map[string]string{
		"silent host": "drop", "30 % loss": "numgen random mod 100 < 30 drop",
	} {
		t.Run(name, func(t *testing.T) {
			i, port := startIstiod(t), parts.FreePort(t)
			first, second := startBackend(t, "first"), startBackend(t, "second")
			i.service("a", port, first)
			host := parts.NewOtherHost(t)
			r := startRelay(t, serverAt(elsewhere(t, host, i.address)), "")
			startEnvoy(t, r.socket, true)
			answers(t, 20*time.Second, port, "a.test", "first answers")
			run, err := load.Start(context.Background(), load.Config{
				HTTPAddress: "127.0.0.1:" + strconv.Itoa(port), Host: "a.test", Rate: 0.1})
			if err != nil {
				t.Fatal(err)
			}
			bad := time.Now()
			host.SetFilterRule(t, rule)
			i.service("a", port, second)
			if rule == "drop" {
				parts.Eventually(t, time.Minute, "the loss is noticed", func() bool {
					return strings.Contains(r.condition(conditionAway), "upstream")
				})
				t.Logf("noticed after %v", time.Since(bad).Round(time.Millisecond))
				parts.Eventually(t, time.Minute, "connecting times out", func() bool {
					return strings.Contains(r.Status().Error, "cannot connect")
				})
				host.SetFilterRule(t, "")
			}
			well := time.Now()
			answers(t, time.Minute, port, "a.test", "second answers")
			took := time.Since(well).Round(time.Millisecond)
			t.Logf("the change arrived after %v", took)
			if rule == "drop" && took > 2*time.Second {
				t.Errorf("%v until Envoy had caught up", took)
			}
			if report := run.Stop(); report.Lost > 0 {
				t.Errorf("%+v", report)
			}
		})
	}
}
