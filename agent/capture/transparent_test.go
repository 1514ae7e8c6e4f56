package capture

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/scripts/parts"
)

// transparentBootstrap configures an Envoy that passes captured inbound connections to the
// application from the client's address, like the listeners of the embedded discovery server.
const transparentBootstrap = `
static_resources:
  listeners:
  - name: outbound
    address: {socket_address: {address: "::", port_value: 15001, ipv4_compat: true}}
    filter_chains: [{filters: [{name: answer, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config,
      response: {inline_string: "15001"}}}]}]
  - name: inbound
    address: {socket_address: {address: 0.0.0.0, port_value: 15006}}
    additional_addresses: [{address: {socket_address: {address: "::", port_value: 15006}}}]
    transparent: true
    listener_filters:
    - {name: original_dst, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst}}
    - {name: original_src, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.filters.listener.original_src.v3.OriginalSrc,
        mark: 1337}}
    filter_chains: [{filters: [{name: proxy, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy,
      stat_prefix: inbound, cluster: original}}]}]
  clusters:
  - {name: original, type: ORIGINAL_DST, lb_policy: CLUSTER_PROVIDED, connect_timeout: 2s}
`

// The application sees the client's address although Envoy is in between. Established connections
// survive a kill of outrider-capture, a withdrawal of the rules and an upgrade.
func TestTransparent_KeepsTheClientsAddress(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	const port = 9090
	listen(t, port, func(c net.Conn) {
		_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).IP.String()+"\n")
		_, _ = io.Copy(c, c)
	})
	r.bootstrap, r.capabilities = transparentBootstrap, []uintptr{unix.CAP_NET_ADMIN}
	r.startEnvoy()
	r.apply(captureTransparent)
	r.captures(StateOn)
	clients := both{r.other.Address, "2001:db8:2::2"}
	var connections []net.Conn
	exchange := func(c net.Conn, send, want string) {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(3 * time.Second))
		if _, err := io.WriteString(c, send); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, len(want))
		if n, err := io.ReadFull(c, answer); err != nil || string(answer) != want {
			t.Fatalf("%q, %v; want %q", answer[:n], err, want)
		}
	}
	// Connect again until both connections are counted: outrider-capture may replace the rules
	// meanwhile, and the counters of the new rules start at zero.
	parts.Eventually(t, time.Minute, "both connections are captured", func() bool {
		r.other.RunOn(t, func() {
			for family, address := range here {
				c, err := net.DialTimeout("tcp", net.JoinHostPort(address, "9090"), 30*time.Second)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				connections = append(connections, c)
				exchange(c, "", clients[family]+"\n")
			}
		})
		s, err := r.client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(s.Counters, func(c Counter) bool {
			return c.Rule == "capture.inbound_ports" && c.Packets >= 2
		})
	})
	still := func() {
		t.Helper()
		for _, c := range connections {
			exchange(c, "hello", "hello")
		}
	}
	if _, err := r.client.Withdraw(t.Context()); err != nil {
		t.Fatal(err)
	}
	still()
	if left, err := capturedConnections(envoyUser); err != nil || !left {
		t.Errorf("%t, %v: the table that marks answers would be removed", left, err)
	}
	if err := r.client.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = r.helper.Wait()
	noPolicyRoutes(t)
	if left := run(t, "", "nft", "list", "ruleset"); left != "" {
		t.Errorf("left: %s", left)
	}
	parts.Eventually(t, soon, "connections are direct", func() (direct bool) {
		r.other.RunOn(t, func() {
			c, err := net.DialTimeout("tcp", net.JoinHostPort(here[0], "80"), time.Second)
			direct = err == nil
			if direct {
				_ = c.Close()
			}
		})
		return direct
	})
}

// outrider-capture restores policy routes that another program deletes, so that the application's
// answers reach Envoy again.
func TestTransparent_RestoresPolicyRoutes(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	r.apply(captureTransparent)
	r.captures(StateOn)
	policy := func() (all string) {
		for _, family := range []string{"-4", "-6"} {
			all += run(t, "", "ip", family, "rule", "show", "table", "133") +
				run(t, "", "ip", family, "route", "show", "table", "133")
		}
		return all
	}
	before := policy()
	for _, family := range []string{"-4", "-6"} {
		ip(t, family+" rule delete table 133")
		ip(t, family+" route flush table 133")
	}
	parts.Eventually(t, time.Minute, "rules and routes are back: "+before, func() bool {
		return policy() == before
	})
}

// With IPv6 disabled, the kernel refuses IPv6 policy routes, and the rules come into force anyway.
func TestTransparent_WithoutIPv6(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	r.startEnvoy()
	r.apply(captureTransparent)
	r.captures(StateOn)
}

// The policy routes are removed once the mode is redirect, and by Cleanup even if it cannot read
// the state file.
func TestTransparent_PolicyRoutesEndWithIt(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.startEnvoy()
	r.apply(captureTransparent)
	r.captures(StateOn)
	if rules := run(t, "", "ip", "rule"); !strings.Contains(rules, "fwmark") {
		t.Fatalf("no policy rule: %s", rules)
	}
	r.apply(captureAll)
	noPolicyRoutes(t)
	r.apply(captureTransparent)
	r.kill(r.helper)
	state := filepath.Join(r.folder, "state.json")
	if err := os.WriteFile(state, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Cleanup("", openRoot(t, r.folder)); err != nil {
		t.Fatal(err)
	}
	noPolicyRoutes(t)
}

// A policy rule that is added twice exists once. Without a fixed priority the kernel would add
// another rule each time.
func TestPolicyRoutes_AreAddedOnce(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	for _, add := range []bool{true, true, false} {
		if err := policyRoutes(add); err != nil {
			t.Fatal(err)
		}
	}
	noPolicyRoutes(t)
}

func noPolicyRoutes(t *testing.T) {
	t.Helper()
	for _, family := range []string{"-4", "-6"} {
		left := run(t, "", "ip", family, "rule") + run(t, "", "ip", family, "route", "show", "table",
			"all")
		if strings.Contains(left, "table 133") || strings.Contains(left, "fwmark") {
			t.Errorf("left: %s", left)
		}
	}
}
