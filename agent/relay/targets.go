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

// target is an IP address of an upstream server, with the configured address it belongs to.
type target struct {
	address string // configured address, as host:port
	dial    string // IP:port to connect to; the configured address if a proxy resolves it
}

// Bounds of name resolution, and of failures whose back-off is stored.
const (
	lookupTimeout = 2 * time.Second
	maxIPs        = 16  // maximum number of IP addresses of one name
	maxFailures   = 256 // maximum number of targets whose back-off is stored
)

// targets chooses the address to which the next link of a session connects. Each IP address has a
// back-off of its own. It is safe for concurrent use.
type targets struct {
	addresses []string
	inUse     *AddressInUse
	// seed of the random order of addresses, which is the same for all sessions
	seed   maphash.Seed
	lookup func(ctx context.Context, host string) ([]string, error)

	mu       sync.Mutex
	failures map[target]*failure
	resolved map[string][]target // targets of each configured address
	round    map[target]bool     // targets that failed since the last success of any target
	reasons  map[string]error    // last error of each configured address
	last     target              // target of the current link
}

// failure holds the back-off of a target that failed.
type failure struct {
	retries backoff.Backoff
	until   time.Time // earliest time of the next attempt
}

func (s *Server) newTargets(upstream Upstream) *targets {
	return &targets{addresses: upstream.Addresses, inUse: s.inUse, seed: s.seed,
		failures: map[target]*failure{}, reasons: map[string]error{},
		resolved: map[string][]target{}, round: map[target]bool{},
		lookup: net.DefaultResolver.LookupHost}
}

// next waits until a target may be tried, and returns it. It prefers the target in use, then the
// first one in this agent's random order. With anew set, it prefers none and shuffles the targets
// again: if a server closes its connections to balance its clients, they must not all return to it.
// The error is that of the name resolution, or of ctx.
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

// choose returns a target that may be tried now. If there is none, it returns how long to wait for
// one.
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

// shuffled returns a copy of a slice in the random order that seed determines. If the slice
// contains first, the copy begins with first.
func shuffled[T comparable](all []T, first T, seed maphash.Seed) []T {
	all = slices.SortedFunc(slices.Values(all), func(a, b T) int {
		return cmp.Compare(maphash.Comparable(seed, a), maphash.Comparable(seed, b))
	})
	if i := slices.Index(all, first); i > 0 {
		all = slices.Insert(slices.Delete(all, i, i+1), 0, first)
	}
	return all
}

// resolve returns the targets that belong to a configured address.
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

// proxied reports whether connections to an address use an HTTP proxy from the environment, which
// also resolves the address.
func proxied(address string) bool {
	proxy, err := http.ProxyFromEnvironment(
		&http.Request{URL: &url.URL{Scheme: "https", Host: address}})
	return proxy != nil || err != nil
}

// take records the target of a new link, unless ctx has ended because the link was replaced.
func (t *targets) take(ctx context.Context, one target) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	t.last = one
	return nil
}

// wait returns the time until a target may be tried.
func (t *targets) wait(one target) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.failures[one]; f != nil {
		return time.Until(f.until)
	}
	return 0
}

// current returns the target of the current link.
func (t *targets) current() target {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// failed records an error of the current link's target and starts its back-off.
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

// exhausted reports whether all targets have failed since the last success of a target.
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

// succeeded ends the back-off of the current link's target.
func (t *targets) succeeded() {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.failures, t.last)
	delete(t.reasons, t.last.address)
	clear(t.round)
}

// problem returns the last errors of all addresses; nil if there are none.
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
			failed = fmt.Errorf("%w; and %w", failed, err)
		}
	}
	return failed
}
