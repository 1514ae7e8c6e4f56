package capture

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/scripts/parts"
)

// proxyAnswer answers a query as the agent's DNS proxy does: it refuses outrider-capture's queries
// of class CH.
func proxyAnswer(query []byte) []byte {
	return append(query[:3:3], append([]byte{5}, query[4:]...)...)
}

// answerOf returns a function that answers each query with the query's identifier and a text.
func answerOf(text string) func(query []byte) []byte {
	return func(query []byte) []byte { return append(query[:2:2], text...) }
}

// datagrams serves UDP until the test ends or the socket is closed.
func datagrams(t *testing.T, address string, answer func(query []byte) []byte) net.PacketConn {
	t.Helper()
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		buffer := make([]byte, 512)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if text := answer(buffer[:n]); text != nil {
				_, _ = socket.WriteTo(text, from)
			}
		}
	}()
	return socket
}

func TestHelper_RedirectsDNSWhileTheProxyAnswers(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	resolvers := "search example\nnameserver " + far[0] + "\nnameserver " + far[1] + "\n"
	r.resolvers(resolvers)
	r.other.RunOn(t, func() {
		for _, resolver := range far {
			datagrams(t, net.JoinHostPort(resolver, "53"), answerOf("far"))
		}
		serve(t, 53, "far")
	})
	proxy := r.startDNS()
	gets := func(want string) time.Duration {
		t.Helper()
		begun := time.Now()
		parts.Eventually(t, time.Minute, "the answer is "+want,
			func() bool { return ask(t, appUser, "udp", far[0]) == want })
		return time.Since(begun)
	}
	gets("far") // no settings
	trackAll(t)
	used := hold(t, far[0])
	usedGets := func(want string) {
		t.Helper()
		parts.Eventually(t, time.Minute, "a socket in use gets "+want,
			func() bool { return exchange(t, used) == want })
	}
	usedGets("far")
	settings := captureAll
	settings.DNSPort = dnsPort
	r.apply(settings) // DNS is redirected although no Envoy runs
	gets("proxy")
	usedGets("proxy")
	s, err := r.client.Status(t.Context())
	want := DNSStatus{State: StateOn, Resolvers: []netip.Addr{netip.MustParseAddr(far[0]),
		netip.MustParseAddr(far[1])}}
	if err != nil || s.State != StateWithdrawn || !reflect.DeepEqual(s.DNS, want) ||
		len(s.Counters) != 1 || s.Counters[0].Rule != "capture.dns" || s.Counters[0].Packets == 0 {
		t.Errorf("%+v, %v", s, err)
	}
	for _, resolver := range far {
		for _, network := range []string{"udp", "tcp"} {
			if got := ask(t, appUser, network, resolver); got != "proxy" {
				t.Errorf("a query over %s to %s gets %q", network, resolver, got)
			}
		}
	}
	for _, uid := range []int{agentUser, envoyUser} {
		if got := ask(t, uid, "udp", far[0]); got != "far" {
			t.Errorf("user %d gets an answer of %s", uid, got)
		}
	}
	if err := r.helper.Process.Signal(unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	<-r.client.Done()
	parts.Eventually(t, time.Minute, "the new image of the helper serves", func() bool {
		run(t, "", "nft", "list", "table", "inet", "outrider-dns") // fails without the table
		r.client, err = Dial(t.Context(), r.socket())
		return err == nil
	})
	defer r.client.Close()
	if _, err := r.client.Status(t.Context()); err != nil { // causes a check of the DNS proxy
		t.Error(err)
	}
	resume := parts.PauseProcess(t, proxy.Process.Pid)
	t.Logf("direct %v after the proxy was silent", gets("far"))
	usedGets("far")
	resume()
	gets("proxy")
	usedGets("proxy")
	r.resolvers("nameserver " + far[1] + "\n")
	usedGets("far")
	r.resolvers(resolvers)
	usedGets("proxy")
	r.kill(r.helper)
	r.kill(proxy)
	r.start()
	usedGets("far")
	t.Logf("direct %v after the proxy was gone", gets("far"))
	const gone = "the DNS proxy does not answer at port 15053"
	if s, err := r.client.Status(t.Context()); err != nil || s.DNS.State != StateWithdrawn ||
		s.DNS.Reason != gone {
		t.Errorf("%+v, %v", s, err)
	}
}

// newDNSRig returns a rig with a DNS proxy, and a DNS server on the other host that answers "far".
func newDNSRig(t *testing.T) (*rig, *exec.Cmd) {
	t.Helper()
	r := newRig(t)
	r.resolvers("nameserver " + far[0] + "\n")
	r.other.RunOn(t, func() {
		datagrams(t, net.JoinHostPort(far[0], "53"), answerOf("far"))
	})
	proxy := r.startDNS()
	return r, proxy
}

// While the agent restarts, systemd holds the sockets of its DNS proxy. As long as these exist,
// queries are redirected and wait in the sockets.
func TestHelper_RedirectsDNSWhileTheAgentRestarts(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r, proxy := newDNSRig(t)
	gets := func(want string) {
		t.Helper()
		parts.Eventually(t, time.Minute, "the answer is "+want,
			func() bool { return ask(t, appUser, "udp", far[0]) == want })
	}
	r.apply(captureDNS)
	gets("proxy")
	resume := parts.PauseProcess(t, proxy.Process.Pid)
	left := time.Now()
	// After agentGrace outrider-capture may remove the table. On a busy machine this may happen
	// before the loop below ends.
	waits := func() bool { return time.Since(left) < agentGrace }
	r.client.Close()
	parts.RepeatFor(2*dnsEvery, 100*time.Millisecond, func() {
		if got := ask(t, appUser, "udp", far[0]); got != "" && waits() { // the query must wait
			t.Fatalf("without the agent: %q", got)
		}
	})
	var err error
	if r.client, err = Dial(t.Context(), r.socket()); err != nil {
		t.Fatal(err)
	}
	if s, err := r.client.Status(t.Context()); err != nil || s.DNS.State != StateOn && waits() {
		t.Errorf("the agent has started, and does not answer yet: %+v, %v", s.DNS, err)
	}
	resume()
	gets("proxy")
	// makes outrider-capture check the DNS proxy
	if _, err := r.client.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	resume = parts.PauseProcess(t, proxy.Process.Pid)
	began := time.Now()
	gets("far")
	t.Logf("direct %v after an agent that had restarted was silent", time.Since(began))
	resume()
	gets("proxy")
	r.client.Close()
	r.kill(proxy)
	gets("far")
}

// Another user's program on the proxy's port receives no queries.
func TestHelper_RedirectsNoDNSToOthers(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	const four, six = "127.0.0.1:15053", "[::1]:15053"
	none, both := AddressFamilies{}, AddressFamilies{IPv4: true, IPv6: true}
	for name, test := range map[string]struct {
		udp  map[string]int // users of UDP sockets, by local address
		tcp  int            // user of the TCP listener on all addresses
		want AddressFamilies
	}{
		"agent":         {map[string]int{four: agentUser, six: agentUser}, agentUser, both},
		"all addresses": {map[string]int{"[::]:15053": agentUser}, agentUser, both},
		"IPv4 only": {map[string]int{four: agentUser}, agentUser,
			AddressFamilies{IPv4: true}},
		"stranger on ::1": {map[string]int{four: agentUser, six: appUser}, agentUser,
			AddressFamilies{IPv4: true}},
		"strangers on UDP":  {map[string]int{four: appUser, six: appUser}, agentUser, none},
		"stranger on TCP":   {map[string]int{four: agentUser, six: agentUser}, appUser, none},
		"agent, other host": {map[string]int{"127.0.0.2:15053": agentUser}, agentUser, none},
	} {
		t.Run(name, func(t *testing.T) {
			for address, uid := range test.udp {
				parts.RunAs(t, uid, func() { datagrams(t, address, proxyAnswer) })
			}
			parts.RunAs(t, test.tcp, func() { serve(t, dnsPort, "proxy") })
			got := dnsReceives(dnsPort, agentUser)
			if got != test.want || got.any() && !dnsAnswers(got, dnsPort) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestReadDNSResolvers_LeavesOutLinkLocalIPv6(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	const text = "nameserver fe80::53%eth0\nnameserver 169.254.169.253\n" +
		"nameserver ::ffff:192.0.2.1\n" +
		"nameserver fd00::53\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readResolvers(file)
	if want := "[169.254.169.253 192.0.2.1 fd00::53]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("got %v, %v, want %s", got, err, want)
	}
}

func TestController_ReportsDNSThatIsNotRedirected(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r := newRig(t)
	r.resolvers("nameserver " + far[0] + "\n")
	settings := captureAll
	settings.DNSPort = dnsPort
	board := condition.NewRegistry()
	controller := NewController(ControllerOptions{Socket: r.socket(), Settings: &settings,
		Users: testUsers, Envoy: &liveEnvoy{}, Conditions: board, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- controller.Run(ctx) }()
	reported := func() bool {
		return slices.ContainsFunc(board.Conditions(), func(c condition.Condition) bool {
			return c.Code == ConditionDNSWithdrawn
		})
	}
	parts.Eventually(t, time.Minute, "the condition is raised", reported)
	r.startDNS()
	parts.Eventually(t, time.Minute, "the condition is cleared", func() bool {
		return !reported()
	})
	if text := controller.Tables()[0].String(); !strings.Contains(text, "elements = { "+far[0]+"/32 }") {
		t.Error(text)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Queries are not redirected forever to an agent that keeps crashing before its proxy answers.
func TestHelper_RedirectsNoDNSToAnAgentThatCrashesAgainAndAgain(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	r, proxy := newDNSRig(t)
	r.apply(captureDNS)
	parts.Eventually(t, time.Minute, "the proxy answers",
		func() bool { return ask(t, appUser, "udp", far[0]) == "proxy" })
	parts.PauseProcess(t, proxy.Process.Pid)
	r.client.Close()
	began := time.Now()
	parts.Eventually(t, 4*agentGrace, "queries go direct", func() bool {
		client, err := Dial(t.Context(), r.socket())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = client.Status(t.Context())
		client.Close()
		return ask(t, appUser, "udp", far[0]) == "far"
	})
	t.Logf("direct %v after the first crash", time.Since(began))
}
