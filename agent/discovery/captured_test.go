package discovery_test

import (
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"

	"outrider.org/outrider/scripts/parts"
)

// TestCaptured runs the cases in testdata/conformance/captured with a sidecar with interception. It
// runs itself again in a network namespace in which connections to 10.9.0.0/16 and fd09::/16 are
// captured as outbound, and those to 10.8.0.1 and fd08::1 as inbound.
func TestCaptured(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	redirect(t)
	s := newSuite(t)
	s.onMachine(t)
	for _, c := range s.cases(t, "captured") {
		t.Run(c.name, func(t *testing.T) { alone(t, c, s) })
	}
}

// onMachine runs the backends of captured cases: $HERE and $UNKNOWN on the host's own address, $FAR
// on another address.
func (s *suite) onMachine(t *testing.T) {
	t.Helper()
	for name, address := range map[string]string{"here": capturedAddress,
		"unknown": capturedAddress, "far": "10.9.0.7"} {
		port := "0"
		for _, address := range []string{address, capturedAddress6} {
			listener, err := net.Listen("tcp", net.JoinHostPort(address, port))
			if err != nil {
				t.Fatal(err)
			}
			port = strconv.Itoa(run(t, &http.Server{Handler: &backend{name: name}}, listener))
		}
		s.variables[strings.ToUpper(name)] = port
	}
}

// inNetwork runs the test in a network namespace (parts.RerunInOwnNetwork), in parallel with other
// tests. It assigns the captured addresses (see redirect) to the loopback interface.
func inNetwork(t *testing.T) bool {
	t.Helper()
	t.Parallel()
	if !parts.RerunInOwnNetwork(t) {
		return false
	}
	for _, arguments := range []string{"address add " + capturedAddress + "/32 dev lo",
		"address add 10.9.0.0/16 dev lo",
		"address add " + capturedAddress6 + "/128 dev lo nodad", "route add local fd09::/16 dev lo"} {
		if said, err := exec.Command("ip",
			strings.Fields(arguments)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", arguments, err, said)
		}
	}
	return true
}

// redirect captures all connections except those that the proxy opens from 127.0.0.6 and ::1.
func redirect(t *testing.T) {
	t.Helper()
	c := &nftables.Conn{}
	to := func(port uint16) []expr.Any {
		return []expr.Any{&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
			&expr.Redir{RegisterProtoMin: 1}}
	}
	for _, f := range []struct {
		family                      nftables.TableFamily
		source, destination, length uint32 // position of the addresses in an IP header
		envoy, here, others         string
	}{
		{nftables.TableFamilyIPv4, 12, 16, 4, "127.0.0.6", capturedAddress, "10.9.0.0"},
		{nftables.TableFamilyIPv6, 8, 24, 16, "::1", capturedAddress6, "fd09::"},
	} {
		table := c.AddTable(&nftables.Table{Family: f.family, Name: "captured"})
		chain := c.AddChain(&nftables.Chain{Name: "output", Table: table,
			Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput,
			Priority: nftables.ChainPriorityNATDest})
		address := func(offset, length uint32, ip string) []expr.Any {
			all := netip.MustParseAddr(ip).AsSlice()
			return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader,
				Offset: offset, Len: length},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: all[:length]}}
		}
		for _, rule := range [][]expr.Any{
			append(address(f.source, f.length, f.envoy), &expr.Verdict{Kind: expr.VerdictReturn}),
			append(address(f.destination, f.length, f.here), to(15006)...),
			append(address(f.destination, 2, f.others), to(15001)...),
		} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule})
		}
	}
	if err := c.Flush(); err != nil {
		t.Fatalf("redirect connections: %v", err)
	}
}
