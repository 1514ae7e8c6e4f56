package dns

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/sockdiag"
	"outrider.org/outrider/scripts/parts"
)

func TestServe_FailsBeforeTheFirstTable(t *testing.T) {
	r := start(t, startResolver(t).address)
	if got := summary(r.query("a.example.org.", dns.TypeA)); got != "SERVFAIL" || r.Serving() {
		t.Errorf("got %s", got)
	}
	r.SetNames(nil)
	if got := summary(r.query("a.example.org.", dns.TypeA)); got != found || !r.Serving() {
		t.Errorf("got %s", got)
	}
}

func TestServe_EDNS(t *testing.T) {
	r := start(t)
	var many []netip.Addr
	for i := range 60 {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}))
	}
	r.SetNames([]Name{{Host: "many.example", Addresses: many}})
	edns := func(size uint16, version uint8) func(*dns.Msg) {
		return func(m *dns.Msg) {
			m.SetEdns0(size, false)
			m.IsEdns0().SetVersion(version)
		}
	}
	plain := r.query("many.example.", dns.TypeA)
	if !plain.Truncated || plain.IsEdns0() != nil {
		t.Errorf("without EDNS: %v", plain)
	}
	m := r.query("many.example.", dns.TypeA, edns(4096, 0))
	if m.Truncated || len(m.Answer) != 60 || m.IsEdns0() == nil {
		t.Errorf("with EDNS: %v", m)
	}
	if m := r.over("tcp", "many.example.", dns.TypeA); len(m.Answer) != 60 {
		t.Errorf("over TCP: %v", m)
	}
	if m := r.query("many.example.", dns.TypeA, edns(1232, 1)); m.Rcode != dns.RcodeBadVers {
		t.Errorf("version 1: %v", m)
	}
}

func TestServe_Refuses(t *testing.T) {
	r := start(t)
	r.SetNames(meshNames())
	for name, test := range map[string]struct {
		want   int
		change func(*dns.Msg)
	}{
		"transfer": {dns.RcodeRefused, func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }},
		"class":    {dns.RcodeRefused, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }},
		"update":   {dns.RcodeNotImplemented, func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }},
		"two questions": {dns.RcodeFormatError,
			func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }},
	} {
		got := r.query("reviews.", dns.TypeA, test.change)
		if got.Rcode != test.want || len(got.Answer) > 0 {
			t.Errorf("%s: got %s, want %s", name, summary(got), dns.RcodeToString[test.want])
		}
	}
}

func TestServe_CountsNoChecksOfTheHelperAsFailed(t *testing.T) {
	r := start(t)
	check := func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }
	r.query(".", dns.TypeTXT, check) // SERVFAIL
	r.SetNames(meshNames())
	r.query(".", dns.TypeTXT, check) // REFUSED
	if got := r.Stats().FailedQueries; got != 0 {
		t.Errorf("%d failed queries", got)
	}
	r.query("reviews.", dns.TypeAXFR)
	if got := r.Stats().FailedQueries; got != 1 {
		t.Errorf("%d failed queries after one", got)
	}
}

func TestServe_RefusesRemoteQueriers(t *testing.T) {
	other := parts.NewOtherHost(t)
	r := start(t, "listen "+other.Peer)
	r.SetNames(meshNames())
	if got := summary(r.query("reviews.", dns.TypeA)); got != "NOERROR aa; reviews. A 10.96.0.1" {
		t.Errorf("from this host: %s", got)
	}
	raw, err := new(dns.Msg).SetQuestion("reviews.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	exchange := func(network string) (*dns.Msg, error) {
		var c net.Conn
		other.RunOn(t, func() { c, err = net.Dial(network, r.address) })
		if err != nil {
			return nil, err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		d := &dns.Conn{Conn: c}
		if _, err := d.Write(raw); err != nil {
			return nil, err
		}
		return d.ReadMsg()
	}
	if m, err := exchange("udp"); err != nil || m.Rcode != dns.RcodeRefused || len(m.Answer) > 0 {
		t.Errorf("over UDP: %v, %v", m, err)
	}
	if m, err := exchange("tcp"); err == nil { // the connection is closed
		t.Errorf("over TCP: %v", m)
	}
	if r.Stats().RefusedQueries < 2 {
		t.Errorf("%d queries refused", r.Stats().RefusedQueries)
	}
}

// Queries that upstreams leave unanswered occupy only the slots of the user who sent them, however
// many sockets the user has.
func TestServe_QueriesArePerUser(t *testing.T) {
	upstream := startResolver(t)
	r := start(t, upstream.address)
	r.SetNames(nil)
	upstream.silent.Store(true)
	dial := func() (c net.Conn) {
		parts.RunAs(t, 65534, func() {
			var err error
			if c, err = net.Dial("udp", r.address); err != nil {
				t.Fatal(err)
			}
		})
		return c
	}
	sent := 0
	send := func(c net.Conn) {
		sent++
		query, err := new(dns.Msg).SetQuestion(fmt.Sprintf("%d.example.org.", sent), dns.TypeA).Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(query); err != nil {
			t.Fatal(err)
		}
		if sent%50 == 0 { // wait, so that the small receive buffers do not overflow
			parts.Eventually(t, time.Minute, "all are refused or forwarded", func() bool {
				return int(r.Stats().FailedQueries)+int(upstream.queries.Load()) >= sent
			})
		}
	}
	flooding := dial()
	defer func() { _ = flooding.Close() }()
	const most, refused = 512 + 128, 110
	for range most + refused {
		send(flooding)
	}
	if got := r.Stats().FailedQueries; got != refused {
		t.Errorf("%d of %d queries are refused, want %d", got, sent, refused)
	}
	for range 400 { // queries of closed sockets: the server cannot determine their user
		c := dial()
		send(c)
		_ = c.Close()
	}
	upstream.silent.Store(false)
	if got := summary(r.query("a.example.org.", dns.TypeA)); got != found {
		t.Errorf("another user gets %s", got)
	}
	other, err := net.ListenPacket("udp", ":0") // on all addresses, IPv4 and IPv6
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	port := uint16(other.LocalAddr().(*net.UDPAddr).Port)
	four, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = four.Close() }()
	fourPort := uint16(four.LocalAddr().(*net.UDPAddr).Port)
	// another user's IPv6-only socket on the port of the IPv4 socket four
	parts.RunAs(t, 65534, func() {
		six, err := net.ListenPacket("udp6", fmt.Sprintf("[::]:%d", fourPort))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = six.Close() })
	})
	loopback := [4]byte{127, 0, 0, 1}
	for address, want := range map[netip.AddrPort]admission.ClientKey{
		flooding.LocalAddr().(*net.UDPAddr).AddrPort():          admission.KeyOfUser(65534),
		netip.AddrPortFrom(netip.AddrFrom4(loopback), port):     admission.KeyOfUser(0),
		netip.AddrPortFrom(netip.AddrFrom4(loopback), fourPort): admission.KeyOfUser(0),
		netip.AddrPortFrom(netip.IPv6Loopback(), fourPort):      admission.KeyOfUser(65534),
		netip.MustParseAddrPort("127.0.0.1:1"):                  admission.KeyOfUser(admission.UnknownUser),
	} {
		if got := keyOf(sockdiag.UDP, address); got != want {
			t.Errorf("the socket at %s is of %+v, want %+v", address, got, want)
		}
	}
}

// withoutDescriptors is a listener whose Accept fails for a while, as if the process had no free
// file descriptor.
type withoutDescriptors struct {
	net.Listener
	until    time.Time
	failures int
}

func (l *withoutDescriptors) Accept() (net.Conn, error) {
	if time.Now().Before(l.until) {
		l.failures++
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return l.Listener.Accept()
}

func TestServe_PausesWithoutDescriptors(t *testing.T) {
	s := New(Options{Listen: "127.0.0.1:0", Conditions: condition.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler)})
	s.SetNames([]Name{{Host: "mesh.test", Addresses: []netip.Addr{netip.MustParseAddr("10.9.9.9")}}})
	bound, err := listenOne(t.Context(), fmt.Sprint("127.0.0.1:", parts.FreePort(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	address := bound.tcp.Addr().String()
	failing := &withoutDescriptors{Listener: bound.tcp, until: time.Now().Add(time.Second)}
	bound.tcp = failing
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.serve(ctx, []sockets{bound}) }()
	client := &dns.Client{Net: "tcp", Timeout: 10 * time.Second}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion("mesh.test.", dns.TypeA), address)
	if err != nil || len(reply.Answer) == 0 {
		t.Errorf("%v, %v", reply, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if failing.failures > 11 {
		t.Errorf("%d accepts in a second", failing.failures)
	}
}

func TestServe_WaitsForItsAddress(t *testing.T) {
	first := start(t)
	other := New(Options{Listen: first.address, Conditions: first.board,
		Logger:     first.options.Logger,
		ResolvConf: first.options.ResolvConf})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- other.Run(ctx) }()
	<-other.Ready()
	if !first.has(conditionAddress) || other.Serving() {
		t.Error("no condition for an address that is taken")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A server that has ended leaves no open files.
func TestServe_ClosesItsFiles(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	t.Run("server", func(t *testing.T) {
		r := start(t, startResolver(t).address)
		r.SetNames(meshNames())
		for i := range 50 {
			r.query(fmt.Sprintf("n%d.example.org.", i), dns.TypeA)
			r.over("tcp", "big.example.org.", dns.TypeTXT)
		}
	})
	parts.Eventually(t, time.Minute, "files are closed", func() bool { return count() <= before })
}

func FuzzAnswer(f *testing.F) {
	s := New(Options{Listen: "127.0.0.1:15053"})
	s.SetNames(meshNames())
	for _, kind := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT} {
		m := new(dns.Msg).SetQuestion("_http._tcp.reviews.shop.svc.cluster.local.", kind)
		m.SetEdns0(1232, true)
		raw, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, false)
		f.Add(raw[:len(raw)-5], true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, tcp bool) {
		if len(raw) < headerSize {
			return
		}
		reply, rest := s.answer(nil, raw, netip.MustParseAddr("127.0.0.1"), tcp)
		if reply != nil && rest != nil {
			t.Error("answered and forwarded")
		}
		if rest != nil {
			reply = s.fail(rest, dns.RcodeServerFailure)
		}
		if reply == nil {
			return
		}
		var m dns.Msg
		if err := m.Unpack(reply); err != nil || !m.Response || !bytes.Equal(reply[:2], raw[:2]) {
			t.Errorf("%v: %v", err, &m)
		}
	})
}
