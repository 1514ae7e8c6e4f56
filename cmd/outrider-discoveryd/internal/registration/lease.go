package registration

import (
	"context"
	"sync"
	"time"

	"outrider.org/outrider/agent/backoff"
)

const (
	// interval is the interval at which a server renews its lease, reads the leases of other
	// servers and reconciles entries.
	interval = 500 * time.Millisecond
	// slow is the longest interval between two renewals at which the leases of others are trusted.
	// A longer interval means that this process was stopped, so it has not observed their renewals.
	slow = 2 * time.Second
)

// leases holds the leases of all servers with the same store. Its zero value is ready for use.
type leases struct {
	mu     sync.Mutex
	own    bool      // this server's lease has been written
	err    error     // error of the last renewal
	read   time.Time // time of the last successful renewal
	others map[string]observation
}

// observation is the last observed renewal of a server's lease, with the time by this host's clock.
type observation struct {
	mark string
	at   time.Time
}

// keepLease renews this server's lease and reads all leases, until ctx ends.
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

// renewLease renews this server's lease once, and returns all leases.
func (s *Server) renewLease(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if err := s.options.Store.RenewLease(ctx, s.instance, s.expiry()); err != nil {
		return nil, err
	}
	return s.options.Store.LeaseVersions(ctx)
}

// expiry returns how long a lease is valid after a renewal: the grace period, and one interval by
// which a renewal may be late.
func (s *Server) expiry() time.Duration { return s.options.GracePeriod + interval }

// update records the leases that were read, or the error. All leases count as renewed now if
// restart is set, if the store was down, because servers could not renew their leases, or if this
// process was stopped, because it could not observe renewals.
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

// renewed reports whether this server's lease has been written.
func (l *leases) renewed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own
}

// problem returns the error of the last renewal; nil: it succeeded.
func (l *leases) problem() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// expired returns the servers whose leases had not been renewed for the given duration when the
// leases were last read, with the times of their last renewals. It returns none while the store
// fails, and never an istiod, which has no lease.
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
