package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"outrider.org/outrider/agent/backoff"
)

// target is one address of an upstream server.
type target struct {
	address string // as configured: host:port
	dial    string // IP:port, of one IP address of the host; address if it is not resolved here
}

// Bounds of targets.
const (
	lookupTimeout = 2 * time.Second
	maxIPs        = 16  // of a name
	maxFailures   = 256 // that are remembered
)

// targets chooses the address of each link of a session. Each IP address has a back-off of its own.
// It is safe for concurrent use.
type targets struct {
	addresses []string
	inUse     *InUse
	seed      maphash.Seed // of the order, the same for all sessions
	lookup    func(ctx context.Context, host string) ([]string, error)

	mu       sync.Mutex
	failures map[target]*failure
	resolved map[string][]target // by address
	round    map[target]bool     // that failed since one succeeded
	reasons  map[string]error    // why an address was left or not reached last
	last     target              // of the current link
}

// failure is the back-off of a target.
type failure struct {
	retries backoff.Backoff
	until   time.Time // no attempt before
}

func (s *Server) newTargets(upstream Upstream) *targets {
	return &targets{addresses: upstream.Addresses, inUse: s.inUse, seed: s.seed,
		failures: map[target]*failure{}, reasons: map[string]error{},
		resolved: map[string][]target{}, round: map[target]bool{},
		lookup: net.DefaultResolver.LookupHost}
}

// next waits until a target may be tried and returns it: the one in use if possible, else the first
// one in the random order of this agent. With anew, none is preferred and the order is another one:
// of servers that close connections to balance their clients, none gets all back. An error is that
// of the target, or of ctx.
func (t *targets) next(ctx context.Context, anew bool) (target, error) {
	for {
		found, pause, err := t.choose(ctx, anew)
		if err != nil || pause <= 0 {
			return found, err
		}
		if err := backoff.Sleep(ctx, pause); err != nil {
			return target{}, err
		}
	}
}

// choose returns a target, or how long all must not be tried.
func (t *targets) choose(ctx context.Context, anew bool) (_ target, pause time.Duration, _ error) {
	preferred, seed := t.inUse.target(), t.seed
	if anew {
		preferred, seed = target{}, maphash.MakeSeed()
	}
	pause = maxPause
	for _, address := range shuffled(t.addresses, preferred.address, seed) {
		unresolved := target{address, address}
		if left := t.wait(unresolved); left > 0 {
			pause = min(pause, left)
			continue
		}
		all, err := t.resolve(ctx, address)
		if err != nil {
			all = []target{unresolved}
		}
		t.mu.Lock()
		t.resolved[address] = all
		t.mu.Unlock()
		if err != nil {
			return unresolved, 0, errors.Join(t.take(ctx, unresolved), err)
		}
		for _, one := range shuffled(all, preferred, seed) {
			left := t.wait(one)
			if left <= 0 {
				return one, 0, t.take(ctx, one)
			}
			pause = min(pause, left)
		}
	}
	return target{}, pause, nil
}

// shuffled returns a copy in the random order of seed. It begins with first, if that is in it.
func shuffled[T comparable](all []T, first T, seed maphash.Seed) []T {
	all = slices.SortedFunc(slices.Values(all), func(a, b T) int {
		return cmp.Compare(maphash.Comparable(seed, a), maphash.Comparable(seed, b))
	})
	if i := slices.Index(all, first); i > 0 {
		all = slices.Insert(slices.Delete(all, i, i+1), 0, first)
	}
	return all
}

// resolve returns the targets of an address.
func (t *targets) resolve(ctx context.Context, address string) ([]target, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || net.ParseIP(host) != nil || proxied(address) {
		return []target{{address, address}}, nil //nolint:nilerr // the attempt has the error
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := t.lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", address, err)
	}
	var all []target
	for _, ip := range ips[:min(len(ips), maxIPs)] {
		all = append(all, target{address, net.JoinHostPort(ip, port)})
	}
	return all, nil
}

// proxied reports whether a proxy of the environment connects to an address, and resolves it.
func proxied(address string) bool {
	proxy, err := http.ProxyFromEnvironment(
		&http.Request{URL: &url.URL{Scheme: "https", Host: address}})
	return proxy != nil || err != nil
}

// take records the target of a link, unless the link has been replaced.
func (t *targets) take(ctx context.Context, one target) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	t.last = one
	return nil
}

// wait returns how long a target must not be tried.
func (t *targets) wait(one target) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.failures[one]; f != nil {
		return time.Until(f.until)
	}
	return 0
}

// current returns the target of the link.
func (t *targets) current() target {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// failed begins a pause for the target of the link.
func (t *targets) failed(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reasons[t.last.address] = why
	t.round[t.last] = true
	f := t.failures[t.last]
	if f == nil {
		if len(t.failures) >= maxFailures {
			clear(t.failures)
			maps.DeleteFunc(t.round, func(one target, _ bool) bool {
				return !slices.Contains(t.resolved[one.address], one)
			})
		}
		f = &failure{retries: backoff.Backoff{Min: firstPause, Max: maxPause, Jitter: jitter}}
		t.failures[t.last] = f
	}
	f.until = time.Now().Add(f.retries.Next())
}

// exhausted reports whether all targets have failed since one succeeded.
func (t *targets) exhausted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, address := range t.addresses {
		all := t.resolved[address]
		if len(all) == 0 || slices.ContainsFunc(all, func(one target) bool { return !t.round[one] }) {
			return false
		}
	}
	return true
}

// succeeded ends the back-off of the link's target.
func (t *targets) succeeded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.failures, t.last)
	delete(t.reasons, t.last.address)
	clear(t.round)
}

// problem returns why no address is used.
func (t *targets) problem() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var failed error
	for _, address := range t.addresses {
		switch err := t.reasons[address]; {
		case err == nil:
		case failed == nil:
			failed = err
		default:
			failed = fmt.Errorf("%w; %w", failed, err)
		}
	}
	return failed
}
