package dns

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"

	"outrider.org/outrider/agent/condition"
)

const (
	// for one query at all upstreams together; most clients wait that long
	forwardTime = 5 * time.Second
	// hedgeAfter is how long an upstream may take before the next one is queried in parallel.
	hedgeAfter = time.Second
)

// Conditions of a forwarder, and when each is cleared.
const (
	conditionNone   = "dns-upstream-missing" // cleared when there is an upstream
	conditionFailed = "dns-upstream-failed"  // cleared when an upstream responds
	conditionLoop   = "dns-upstream-loop"    // cleared when the upstreams change
)

// forwarder sends queries to upstreams. Concurrent equal queries share one response.
type forwarder struct {
	board *condition.Registry
	group singleflight.Group
	cache atomic.Pointer[cache]

	mu        sync.Mutex
	upstreams []*upstream
	parallel  bool
	// inFlight counts, by name, the queries in progress at upstreams. The letters of these names
	// have random case, so an incoming query with exactly such a name was sent back by an upstream.
	inFlight map[string]int
}

func newForwarder(board *condition.Registry) *forwarder {
	f := &forwarder{board: board, inFlight: map[string]int{}}
	f.forget()
	return f
}

// use replaces the upstreams, given as address:port. Upstreams that remain keep their connections.
func (f *forwarder) use(addresses []string, parallel bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parallel = parallel
	before := f.upstreams
	if slices.EqualFunc(before, addresses,
		func(u *upstream, address string) bool { return u.address == address }) && before != nil {
		return
	}
	f.upstreams = []*upstream{}
	for _, address := range addresses {
		i := slices.IndexFunc(before, func(u *upstream) bool { return u.address == address })
		if i < 0 {
			f.upstreams = append(f.upstreams, newUpstream(address))
			continue
		}
		f.upstreams = append(f.upstreams, before[i])
		before = slices.Delete(slices.Clone(before), i, i+1)
	}
	for _, u := range before {
		u.close()
	}
	f.forget() // the new upstreams may respond differently
	f.board.Clear(conditionLoop)
	f.board.Clear(conditionFailed)
	if len(addresses) > 0 {
		f.board.Clear(conditionNone)
		return
	}
	f.board.Raise(conditionNone, condition.Error, "the DNS proxy has no upstream: names outside the "+
		"mesh are not resolved; set [dns] upstream, or a nameserver in /etc/resolv.conf")
}

// close closes the idle connections.
func (f *forwarder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.upstreams {
		u.close()
	}
}

// forget empties the cache.
func (f *forwarder) forget() { f.cache.Store(newCache()) }

// candidates returns the upstreams in order of preference: those that failed recently are last.
func (f *forwarder) candidates() (all []*upstream, parallel bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var failed []*upstream
	limit := time.Now().Add(-avoided).UnixNano()
	for _, u := range f.upstreams {
		if u.failed.Load() > limit {
			failed = append(failed, u)
		} else {
			all = append(all, u)
		}
	}
	return append(all, failed...), f.parallel
}

// errLoop reports that an upstream forwards to this proxy.
var errLoop = errors.New("DNS loop: an upstream DNS server sent a query of this proxy back to it")

// forward returns the response of an upstream. Equal queries must have the same key. The query is
// not modified.
func (f *forwarder) forward(ctx context.Context, key string, query *dns.Msg) (*dns.Msg, error) {
	q := query.Question[0]
	if f.isOwn(q.Name) {
		return nil, errLoop
	}
	result, err, shared := f.group.Do(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(ctx, forwardTime)
		defer cancel()
		return f.race(ctx, query)
	})
	if err != nil {
		return nil, err
	}
	reply := result.(*dns.Msg)
	if shared {
		reply = reply.Copy()
	}
	sent := reply.Question[0].Name
	reply.Id, reply.Question = query.Id, []dns.Question{q}
	for _, rr := range reply.Answer {
		if h := rr.Header(); h.Name == sent {
			h.Name = q.Name
		}
	}
	return reply, nil
}

// race queries the upstreams, one after the other or all at once, until one responds.
func (f *forwarder) race(ctx context.Context, query *dns.Msg) (*dns.Msg, error) {
	upstreams, parallel := f.candidates()
	if len(upstreams) == 0 {
		return nil, errors.New("no upstream DNS server")
	}
	q := query.Question[0]
	lower := strings.ToLower(q.Name)
	q.Name = randomCase(lower)
	mixed := *query // a copy: only its question is changed, other sections are shared
	mixed.Question = []dns.Question{q}
	if q.Name != lower { // a name without letters cannot have random case
		ended := f.track(q.Name)
		defer ended()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		reply *dns.Msg
		err   error
	}
	results := make(chan result, len(upstreams))
	pending := 0
	var current *upstream // upstream of the last query
	next := func() {
		if len(upstreams) == 0 {
			return
		}
		u := upstreams[0]
		current, upstreams = u, upstreams[1:]
		pending++
		go func() {
			reply, err := u.exchange(ctx, &mixed)
			results <- result{reply, err}
		}()
	}
	next()
	for parallel && len(upstreams) > 0 {
		next()
	}
	hedge := time.NewTicker(hedgeAfter)
	defer hedge.Stop()
	var last *dns.Msg
	var errs []error
	for pending > 0 {
		select {
		case r := <-results:
			pending--
			switch {
			case r.err != nil:
				errs = append(errs, r.err)
			case r.reply.Rcode == dns.RcodeSuccess || r.reply.Rcode == dns.RcodeNameError:
				f.board.Clear(conditionFailed)
				return r.reply, nil
			default:
				last = r.reply
			}
			next()
			hedge.Reset(hedgeAfter)
		case <-hedge.C:
			current.fail() // too slow to be the first choice
			next()
		}
	}
	if last != nil {
		return last, nil
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	err := errors.Join(errs...)
	f.board.Raise(conditionFailed, condition.Warning, "no upstream of the DNS proxy responds: "+
		strings.ReplaceAll(err.Error(), "\n", "; "))
	return nil, err
}

// track counts a name as in flight until the returned function is called.
func (f *forwarder) track(name string) (end func()) {
	add := func(n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.inFlight[name] += n; f.inFlight[name] == 0 {
			delete(f.inFlight, name)
		}
	}
	add(1)
	return func() { add(-1) }
}

// isOwn reports whether an upstream forwards a query of this proxy back to it.
func (f *forwarder) isOwn(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inFlight[name] == 0 {
		return false
	}
	f.board.Raise(conditionLoop, condition.Warning, "an upstream of the DNS proxy forwards queries "+
		"back to it; set [dns] upstream to resolvers that do not")
	return true
}

// randomCase changes the case of each letter at random; the first letter is always changed.
func randomCase(name string) string {
	b := []byte(name)
	changed := false
	for i, c := range b {
		if c >= 'a' && c <= 'z' && (!changed || rand.IntN(2) == 0) {
			b[i] = c - 'a' + 'A'
			changed = true
		}
	}
	return string(b)
}
