package registration

import (
	"context"
	"sync"
	"time"

	"outrider.org/outrider/agent/backoff"
)

const (
	// interval is the period of renewing the lease, reading the leases of others, and comparing
	// entries.
	interval = 500 * time.Millisecond
	// slow is the maximum time between two renewals of a working store. After more time, other
	// instances may not have been able to renew their leases either.
	slow = 2 * time.Second
)

// leases holds the leases of all instances. Its zero value is ready for use.
type leases struct {
	mu     sync.Mutex
	own    bool      // this instance's lease was written
	err    error     // error of the last renewal
	read   time.Time // when the leases were last read
	others map[string]observation
}

// observation is when an instance was last seen renewing its lease, on this host's clock.
type observation struct {
	mark string
	at   time.Time
}

// keepLease renews the lease, and reads those of others, until ctx ends.
func (s *Server) keepLease(ctx context.Context) {
	for {
		begun := time.Now()
		all, err := s.renewLease(ctx)
		s.leases.update(all, err, !s.serving.Load(), time.Now())
		if backoff.Sleep(ctx, interval-time.Since(begun)) != nil {
			return
		}
	}
}

// renewLease renews the lease once, and returns all leases.
func (s *Server) renewLease(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if err := s.options.Store.Renew(ctx, s.instance, s.expiry()); err != nil {
		return nil, err
	}
	return s.options.Store.Leases(ctx)
}

// expiry returns how long after its last renewal a lease expires. It includes one interval, by
// which a renewal may be late.
func (s *Server) expiry() time.Duration { return s.options.GracePeriod + interval }

// update records the leases that were read. While the store cannot be used, no lease can be
// renewed; so all leases count as renewed once it can be used again, if restart is set, and after a
// time in which this process or its host was stopped.
func (l *leases) update(all map[string]string, err error, restart bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	restart = restart || l.err != nil || now.Sub(l.read) > slow
	if l.err = err; err != nil {
		return
	}
	l.own, l.read = true, now
	next := make(map[string]observation, len(all))
	for instance, mark := range all {
		known, ok := l.others[instance]
		if !ok || known.mark != mark || restart {
			known = observation{mark, now}
		}
		next[instance] = known
	}
	l.others = next
}

// renewed reports whether this instance has a lease.
func (l *leases) renewed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own
}

// problem returns why leases cannot be renewed now, nil if they can.
func (l *leases) problem() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// expired returns the instances whose leases had not been renewed for a duration when the leases
// were last read, and since when. It returns none while the store fails. Instances of istiod have
// no leases.
func (l *leases) expired(duration time.Duration) map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]time.Time{}
	if l.err != nil {
		return all
	}
	for instance, seen := range l.others {
		if l.read.Sub(seen.at) > duration {
			all[instance] = seen.at
		}
	}
	return all
}
