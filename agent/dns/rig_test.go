package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// resolver is an upstream server on 127.0.0.1, UDP and TCP.
type resolver struct {
	address string
	queries atomic.Int64
	silent  atomic.Bool

	mu      sync.Mutex
	clients map[string]bool // addresses that sent queries, each preceded by its network
	respond func(m, query *dns.Msg)
}

// zone contains the records that the upstream servers serve.
const zone = `
a.example.org.    300 IN A    198.51.100.1
old.example.org.  300 IN MX   10 mail.example.org.
big.example.org.  300 IN TXT  "%s"
`

func startResolver(t testing.TB, more ...string) *resolver {
	t.Helper()
	r := &resolver{clients: map[string]bool{}}
	records := map[string][]dns.RR{}
	text := fmt.Sprintf(zone, strings.Repeat(strings.Repeat("x", 200)+`" "`, 5)) +
		strings.Join(more, "\n")
	parser := dns.NewZoneParser(strings.NewReader(text), "", "")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		records[rr.Header().Name] = append(records[rr.Header().Name], rr)
	}
	if err := parser.Err(); err != nil {
		t.Fatal(err)
	}
	soa, _ := dns.NewRR("org. 60 IN SOA ns.org. root.org. 1 2 3 4 30")
	r.respond = func(m, query *dns.Msg) {
		q := query.Question[0]
		found, known := records[strings.ToLower(q.Name)]
		for _, rr := range found {
			if rr.Header().Rrtype == q.Qtype {
				rr = dns.Copy(rr)
				rr.Header().Name = q.Name
				m.Answer = append(m.Answer, rr)
			}
		}
		if !known {
			m.Rcode = dns.RcodeNameError
		}
		if len(m.Answer) == 0 {
			m.Ns = []dns.RR{soa}
		}
	}
	r.address = fmt.Sprint("127.0.0.1:", parts.FreePort(t))
	udp, err := net.ListenPacket("udp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", r.address)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []*dns.Server{{PacketConn: udp}, {Listener: tcp}} {
		server.Handler = dns.HandlerFunc(r.serve)
		done := make(chan error, 1)
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() { done <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			_ = server.Shutdown()
			<-done
		})
	}
	return r
}

// use sets the function that fills in the responses.
func (r *resolver) use(respond func(m, query *dns.Msg)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.respond = respond
}

func (r *resolver) serve(w dns.ResponseWriter, query *dns.Msg) {
	r.queries.Add(1)
	if r.silent.Load() {
		return
	}
	m := new(dns.Msg).SetReply(query)
	r.mu.Lock()
	r.clients[w.RemoteAddr().Network()+" "+w.RemoteAddr().String()] = true
	respond := r.respond
	r.mu.Unlock()
	respond(m, query)
	if w.RemoteAddr().Network() == "udp" {
		m.Truncate(512)
	}
	_ = w.WriteMsg(m)
}

// rig is a DNS server that reads the test's own resolv.conf.
type rig struct {
	*Server
	t          testing.TB
	address    string
	board      *condition.Registry
	resolvConf string
}

// start runs a server. Besides upstreams, the arguments may contain "listen ADDRESS" to set the
// listening address and "resolved SOCKET" for the socket of the helper.
func start(t testing.TB, upstreams ...string) *rig {
	t.Helper()
	r := &rig{t: t, board: condition.NewRegistry(),
		resolvConf: filepath.Join(t.TempDir(), "resolv.conf"),
		address:    fmt.Sprint("127.0.0.1:", parts.FreePort(t))}
	if len(upstreams) > 0 {
		if host, ok := strings.CutPrefix(upstreams[0], "listen "); ok {
			r.address, upstreams = fmt.Sprint(host, ":", parts.FreePort(t)), nil
		}
	}
	var socket string
	if len(upstreams) > 0 {
		if path, ok := strings.CutPrefix(upstreams[0], "resolved "); ok {
			socket, upstreams = path, nil
		}
	}
	r.write("search corp.example\n")
	r.Server = New(Options{Listen: r.address, Conditions: r.board,
		Logger:   slog.New(slog.DiscardHandler),
		Node:     Node{Namespace: "shop", Domain: "shop.svc.cluster.local"},
		Settings: config.DNS{Upstream: upstreams}, ResolvedHelperSocket: socket,
		ResolvConf: []string{r.resolvConf, r.resolvConf + "-of-resolved"}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-r.Ready()
	parts.Eventually(t, time.Minute, "resolv.conf is read", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.Server.host.search == "corp.example"
	})
	return r
}

func (r *rig) write(text string) {
	r.t.Helper()
	if err := os.WriteFile(r.resolvConf, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// query sends a query and returns the response.
func (r *rig) query(name string, kind uint16, change ...func(*dns.Msg)) *dns.Msg {
	r.t.Helper()
	return r.over("udp", name, kind, change...)
}

func (r *rig) over(network, name string, kind uint16, change ...func(*dns.Msg)) *dns.Msg {
	r.t.Helper()
	m := new(dns.Msg).SetQuestion(name, kind)
	for _, c := range change {
		c(m)
	}
	client := dns.Client{Net: network, Timeout: 10 * time.Second}
	reply, _, err := client.Exchange(m, r.address)
	if err != nil {
		r.t.Fatalf("%s %s over %s: %v", name, dns.TypeToString[kind], network, err)
	}
	return reply
}

// summary describes a response for comparison: code, flags, and answers without TTL.
func summary(m *dns.Msg) string {
	all := []string{dns.RcodeToString[m.Rcode]}
	if m.Authoritative {
		all[0] += " aa"
	}
	for _, rr := range m.Answer {
		h := rr.Header()
		all = append(all, h.Name+" "+dns.TypeToString[h.Rrtype]+" "+
			strings.TrimPrefix(rr.String(), h.String()))
	}
	return strings.Join(all, "; ")
}

func (r *rig) has(code string) bool {
	for _, c := range r.board.Conditions() {
		if c.Code == code {
			return true
		}
	}
	return false
}

func addresses(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// meshNames are names of the mesh, as istiod sends them and as files define them.
func meshNames() []Name {
	return []Name{
		{Host: "reviews.shop.svc.cluster.local", Addresses: addresses("10.96.0.1", "fd00::1"),
			Ports:     []Port{{Name: "http", Number: 9080}},
			ShortName: "reviews", Namespace: "shop"},
		{Host: "db.data.svc.cluster.local", Addresses: addresses("10.96.0.2"), ShortName: "db",
			Namespace: "data"},
		{Host: "db.data.svc.other.mesh", Addresses: addresses("10.97.0.2"), ShortName: "db",
			Namespace: "data"},
		{Host: "Payments.Example.com", Addresses: addresses("240.240.0.1")},
		{Host: "*.wild.example", Addresses: addresses("240.240.0.2")},
		{Host: "old.example.org", Addresses: addresses("240.240.0.3")},
	}
}
