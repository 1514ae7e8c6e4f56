package dns

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"outrider.org/outrider/scripts/parts"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

const (
	found   = "NOERROR; a.example.org. A 198.51.100.1"
	missing = "nothing.example.org."
)

func TestForward_CachesAnswersAndTheirAbsence(t *testing.T) {
	upstream := startResolver(t, "short.example.org. 1 IN A 198.51.100.2")
	r := start(t, upstream.address)
	r.SetNames(nil)
	for range 3 {
		if got := summary(r.query("a.example.org.", dns.TypeA)); got != found {
			t.Errorf("got %s", got)
		}
		if got := summary(r.query("a.example.org.", dns.TypeAAAA)); got != "NOERROR" {
			t.Errorf("got %s", got)
		}
		if got := summary(r.query(missing, dns.TypeA)); got != "NXDOMAIN" {
			t.Errorf("got %s", got)
		}
	}
	if got := upstream.queries.Load(); got != 3 {
		t.Errorf("upstream got %d queries for 3 questions", got)
	}
	ttl := func(name string) uint32 { return r.query(name, dns.TypeA).Answer[0].Header().Ttl }
	ttl("short.example.org.")
	before := upstream.queries.Load()
	parts.Eventually(t, time.Minute, "TTL decreases", func() bool {
		return ttl("a.example.org.") < 300 && ttl("a.example.org.") > 290
	})
	parts.Eventually(t, time.Minute, "an expired answer is requested again", func() bool {
		return ttl("short.example.org.") == 1 && upstream.queries.Load() > before
	})
}

func TestForward_ReusesConnections(t *testing.T) {
	upstream := startResolver(t)
	r := start(t, upstream.address)
	r.SetNames(nil)
	for range 20 {
		r.query(strings.Repeat("x", int(upstream.queries.Load())+1)+".example.org.", dns.TypeA)
	}
	for range 3 {
		m := r.over("tcp", "big.example.org.", dns.TypeTXT) // truncated over UDP
		if len(m.Answer) != 1 || m.Truncated {
			t.Errorf("got %v", m)
		}
		r.forwards.forget()
	}
	upstream.mu.Lock()
	defer upstream.mu.Unlock()
	if len(upstream.clients) != 2 {
		t.Errorf("%d connections for UDP and TCP: %v", len(upstream.clients), upstream.clients)
	}
}

func TestForward_UsesTheNextUpstream(t *testing.T) {
	closed := func() string {
		l, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		return l.LocalAddr().String()
	}
	silent, broken := startResolver(t), startResolver(t)
	silent.silent.Store(true)
	broken.use(func(m, _ *dns.Msg) { m.Rcode = dns.RcodeServerFailure })
	for name, test := range map[string]struct {
		first    string
		parallel bool
		within   time.Duration
	}{
		"closed port":         {closed(), false, hedgeAfter / 2},
		"server failure":      {broken.address, false, hedgeAfter / 2},
		"silent":              {silent.address, false, 2 * hedgeAfter},
		"silent, in parallel": {silent.address, true, hedgeAfter / 2},
	} {
		t.Run(name, func(t *testing.T) {
			good := startResolver(t)
			r := start(t)
			r.Configure(config.DNS{Upstream: []string{test.first, good.address}, Parallel: test.parallel})
			r.SetNames(nil)
			begun := time.Now()
			if got := summary(r.query("a.example.org.", dns.TypeA)); got != found {
				t.Errorf("got %s", got)
			}
			if took := time.Since(begun); took > test.within {
				t.Errorf("took %s", took)
			}
			if name == "silent" { // the next query tries an upstream that did not respond last
				begun = time.Now()
				if r.query(missing, dns.TypeA); time.Since(begun) > hedgeAfter/2 {
					t.Errorf("the second query took %s", time.Since(begun))
				}
			}
		})
	}
}

func TestForward_ReportsUpstreamsThatFail(t *testing.T) {
	t.Parallel()
	upstream := startResolver(t)
	upstream.silent.Store(true)
	r := start(t, upstream.address)
	r.SetNames(nil)
	if got := summary(r.query("a.example.org.", dns.TypeA)); got != "SERVFAIL" {
		t.Errorf("got %s", got)
	}
	if !r.has(conditionFailed) {
		t.Error("no condition")
	}
	upstream.silent.Store(false)
	if got := summary(r.query("a.example.org.", dns.TypeA)); got != found || r.has(conditionFailed) {
		t.Errorf("got %s; condition %v", got, r.has(conditionFailed))
	}
}

// Users can cause failures without limit. The texts of similar errors must be equal, so that they
// cause few events.
func TestForward_ManyFailuresAreFewEvents(t *testing.T) {
	r := start(t, fmt.Sprint("127.0.0.1:", parts.FreePort(t)), fmt.Sprint("127.0.0.1:",
		parts.FreePort(t)))
	r.SetNames(nil)
	texts := map[string]bool{}
	for i := range 10_000 {
		if got := summary(r.query(fmt.Sprintf("n%d.example.", i), dns.TypeA)); got != "SERVFAIL" {
			t.Fatalf("got %s", got)
		}
		for _, c := range r.board.Conditions() {
			texts[c.Sentence] = true
		}
	}
	if got := len(r.board.Events(0)); got > 3 {
		t.Errorf("%d events", got)
	}
	if len(texts) != 1 {
		t.Errorf("%d texts: %v", len(texts), texts)
	}
}

// A query that an upstream sends back neither loops nor delays its client.
func TestForward_BreaksLoops(t *testing.T) {
	looping, good := startResolver(t), startResolver(t)
	r := start(t, looping.address, good.address)
	r.SetNames(nil)
	looping.use(func(m, query *dns.Msg) {
		back := query.Copy()
		back.Id = dns.Id()
		reply, _, err := new(dns.Client).Exchange(back, r.address)
		if err != nil {
			m.Rcode = dns.RcodeServerFailure
			return
		}
		m.Rcode, m.Answer = reply.Rcode, reply.Answer
	})
	begun := time.Now()
	if got := summary(r.query("a.example.org.", dns.TypeA)); got != found {
		t.Errorf("got %s", got)
	}
	if took := time.Since(begun); took > hedgeAfter/2 {
		t.Errorf("took %s", took)
	}
	if !r.has(conditionLoop) || looping.queries.Load() != 1 {
		t.Errorf("condition %v, %d queries", r.has(conditionLoop), looping.queries.Load())
	}
	r.Configure(config.DNS{Upstream: []string{good.address}})
	if r.has(conditionLoop) {
		t.Error("the condition remains after the upstreams changed")
	}
}

// Settings that arrive before the host's files are read do not raise the condition that there is no
// upstream.
func TestForward_ReportsNoMissingUpstreamBeforeResolvConf(t *testing.T) {
	board := condition.NewRegistry()
	s := New(Options{Listen: "127.0.0.1:0", Conditions: board,
		Logger: slog.New(slog.DiscardHandler)})
	if s.Configure(config.DNS{}); len(board.Conditions()) > 0 {
		t.Errorf("%+v", board.Conditions())
	}
}

func TestForward_ReadsResolvConfAgain(t *testing.T) {
	r := start(t)
	r.SetNames(meshNames())
	if !r.has(conditionNone) {
		t.Error("no condition without an upstream")
	}
	current := func() string {
		r.forwards.mu.Lock()
		defer r.forwards.mu.Unlock()
		var all []string
		for _, u := range r.forwards.upstreams {
			all = append(all, u.address)
		}
		return strings.Join(all, " ")
	}
	await := func(want string) {
		t.Helper()
		parts.Eventually(t, time.Minute, "upstreams are "+want,
			func() bool { return current() == want })
	}
	r.write("search other.example\nnameserver 192.0.2.1\nnameserver 2001:db8::1\n")
	await("192.0.2.1:53 [2001:db8::1]:53")
	got := summary(r.query("payments.example.com.other.example.", dns.TypeA))
	if !strings.Contains(got, "CNAME") {
		t.Errorf("search domain: %s", got)
	}
	// in place of systemd-resolved's stub, the upstreams of resolved are used
	r.write("nameserver 127.0.0.53\n")
	err := os.WriteFile(r.resolvConf+"-of-resolved", []byte("nameserver 192.0.2.7\n"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	await("192.0.2.7:53")
	// replaced by renaming, as DHCP clients do
	next := r.resolvConf + ".new"
	if err := os.WriteFile(next, []byte("nameserver 192.0.2.8\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, r.resolvConf); err != nil {
		t.Fatal(err)
	}
	await("192.0.2.8:53")
	r.Configure(config.DNS{Upstream: []string{"192.0.2.9", "192.0.2.9:5353"}})
	await("192.0.2.9:53 192.0.2.9:5353")
}
