package systemtest

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"outrider.org/outrider/scripts/parts"
)

// resolverTime is how long the clients wait for a response.
const resolverTime = 5 * time.Second

// dnsLoad is a set of DNS clients on a machine that query a name continuously.
type dnsLoad struct {
	t       *testing.T
	name    string
	want    string // expected address
	end     chan struct{}
	running sync.WaitGroup

	mu       sync.Mutex
	answered int
	again    int // TCP queries repeated because their connection ended
	slowest  time.Duration
	failed   map[string]int
}

// startDNSLoad starts ten clients for each server, half of them with TCP.
func startDNSLoad(t *testing.T, h *Host, name, want string, servers ...string) *dnsLoad {
	t.Helper()
	l := &dnsLoad{t: t, name: name, want: want, end: make(chan struct{}), failed: map[string]int{}}
	namespace := fmt.Sprintf("/proc/%d/ns/net", h.Leader())
	for _, server := range servers {
		for i := range 10 {
			network := []string{"udp", "tcp"}[i%2]
			l.running.Go(func() {
				parts.InNamespace(t, namespace, func() { l.run(network, server) })
			})
		}
	}
	return l
}

// run queries a server 20 times a second until the load ends.
func (l *dnsLoad) run(network, server string) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		began := time.Now()
		result, again := l.query(network, server)
		took := time.Since(began)
		l.mu.Lock()
		l.answered++
		if again {
			l.again++
		}
		l.slowest = max(l.slowest, took)
		if result != l.want {
			l.failed[network+" "+server+": "+result]++
		}
		l.mu.Unlock()
		select {
		case <-l.end:
			return
		case <-tick.C:
		}
	}
}

// query returns the address in the response, or another result as text. As libc does, it repeats a
// TCP query whose connection ends without a response.
func (l *dnsLoad) query(network, server string) (result string, again bool) {
	client := dns.Client{Net: network, Timeout: resolverTime}
	question := new(dns.Msg).SetQuestion(l.name, dns.TypeA)
	connection, err := client.Dial(server)
	if err != nil {
		return err.Error(), false
	}
	reply, _, err := client.ExchangeWithConn(question, connection)
	_ = connection.Close()
	if network == "tcp" && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)) {
		again = true
		reply, _, err = client.Exchange(question, server)
	}
	if err != nil {
		return err.Error(), again
	}
	for _, rr := range reply.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String(), again
		}
	}
	return dns.RcodeToString[reply.Rcode], again
}

// more waits until the given number of further queries has been answered.
func (l *dnsLoad) more(answers int) {
	l.t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.answered
	}
	before := count()
	parts.Eventually(l.t, time.Minute, "queries are answered", func() bool {
		return count() >= before+answers
	})
}

// stop ends the load. It fails the test unless each query had the expected result.
func (l *dnsLoad) stop(what string) {
	l.t.Helper()
	close(l.end)
	l.running.Wait()
	l.t.Logf("%s: %d queries, %d repeated over TCP, the slowest took %v", what, l.answered, l.again,
		l.slowest.Round(time.Millisecond))
	if len(l.failed) > 0 {
		l.t.Errorf("%s: of %d queries of %s: %v", what, l.answered, strings.TrimSuffix(l.name, "."),
			l.failed)
	}
}
