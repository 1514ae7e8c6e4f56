package registration

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"outrider.org/outrider/agent/backoff"
)

const (
	writers = 16 // writes at the same time
	// writes in one call of reconcile, counted separately for entries with and without streams
	maxJobs  = 256
	gathered = 50 * time.Millisecond // events within this time are handled together
	stopTime = 3 * time.Second       // bounds the last writes of a server that stops
	// lag is how old the entries of Store.Entries may be
	lag           = time.Second
	shortestRetry = 500 * time.Millisecond
	longestRetry  = 30 * time.Second
	reportDown    = 5 * time.Second // a store that fails for longer raises a condition
	// healthPause is the minimum time between two writes of the health of a workload.
	healthPause = time.Second
)

// conditionStore is active while the store of registered workloads cannot be used.
const conditionStore = "registration-store-down"

// Reasons for the removal of an entry.
const (
	reasonDisconnected = "disconnected"
	reasonServerLost   = "server_lost"
)

// silence is the time since which an entry has had no stream, on this host's clock.
type silence struct {
	Connection
	since time.Time
}

func retryPause(failures int) time.Duration {
	return backoff.Exponential(shortestRetry, longestRetry, failures)
}

// Name returns the name of the part.
func (s *Server) Name() string { return "registration" }

// Run reconciles the entries with the streams until ctx ends. All streams should have ended by
// then.
func (s *Server) Run(ctx context.Context) error {
	working, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	stored := make(chan error, 1)
	running.Go(func() { stored <- s.options.Store.Run(working) })
	running.Go(func() { s.keepLease(working) })
	defer running.Wait()
	defer end()
	s.options.Logger.Info("registration of workloads is on", "instance", s.instance, "grace_period",
		s.options.GracePeriod)
	s.MarkReady()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.wake:
			_ = backoff.Sleep(ctx, gathered)
		case err := <-stored:
			return err
		case <-ctx.Done():
			s.stop(working)
			return nil
		}
		s.reconcile(ctx, time.Now())
	}
}

// stop records that all workloads have no stream at this instance any more.
func (s *Server) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	s.mu.Lock()
	s.ending = true
	for _, h := range s.hosts {
		if h.ended.IsZero() {
			h.ended = time.Now()
		}
	}
	s.mu.Unlock()
	for s.reconcile(ctx, time.Now()) > 0 || s.recent(time.Now()) {
		if backoff.Sleep(ctx, gathered) != nil {
			return
		}
	}
}

// recent reports whether Store.Entries may lack the last write for a host.
func (s *Server) recent(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hosts {
		if now.Sub(h.written) <= lag {
			return true
		}
	}
	return false
}

// job is a write that reconcile makes.
type job struct {
	entry *Entry // entry that is written; nil: the job reads it
	one   *session
	run   func(context.Context) error
}

// reconcile compares the entries with the streams and the leases, and makes the writes that are
// due. It returns the number of writes.
func (s *Server) reconcile(ctx context.Context, now time.Time) int {
	entries, err := s.options.Store.Entries()
	if err == nil {
		err = s.leases.problem()
	}
	var jobs []job
	if err != nil || !s.serving.Load() {
		s.silent = nil // workloads cannot connect to another instance while the store fails
	}
	if err == nil {
		expired := s.leases.expired(s.expiry())
		jobs = append(s.due(entries, expired, now), s.unused(entries)...)
	}
	var group errgroup.Group
	group.SetLimit(writers)
	failures := make([]error, len(jobs))
	for i, j := range jobs {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, requestTime)
			defer cancel()
			failures[i] = j.run(ctx)
			return nil
		})
	}
	_ = group.Wait()
	for i, j := range jobs {
		if failure := failures[i]; j.one != nil {
			s.finish(j.one, failure)
		} else if failure != nil {
			s.failed(j.entry, failure, now)
		}
		if err == nil && unavailable(failures[i]) {
			err = failures[i]
		}
	}
	if err == nil {
		err = s.failure()
	}
	s.reportStore(err, now)
	return len(jobs)
}

// finish handles the result of a claim by reconcile.
func (s *Server) finish(one *session, err error) {
	s.retry(one, err)
	s.mu.Lock()
	// for a claimed entry the stream continues, for example if its group was removed
	claimed := one.claimed
	s.mu.Unlock()
	if claimed || !isRefusal(err) {
		return
	}
	select {
	case one.refused <- err:
	default: // the stream ends already
	}
}

// due returns the writes for the streams of this instance, and for entries without a stream.
func (s *Server) due(entries []*Entry, expired map[string]time.Time, now time.Time) (jobs []job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	silent := map[Key]silence{}
	present := make(map[Key]*Entry, len(entries))
	s.states = map[string]int{"connected": 0, "disconnected": 0}
	for _, e := range entries {
		present[e.Key] = e
		if e.connected() {
			s.states["connected"]++
		} else {
			s.states["disconnected"]++
		}
		if h := s.hosts[e.Key]; h != nil && h.live(s.ending) {
			continue
		}
		if !e.connected() && !e.DisconnectedAt.IsZero() && s.serving.Load() {
			silent[e.Key] = s.silence(e, now)
		}
		run := s.departed(e, silent[e.Key], expired, now)
		switch {
		case run == nil || !s.mayWrite(e, now):
		case len(jobs) < maxJobs:
			jobs = append(jobs, job{entry: e, run: run})
		default: // hosts with streams must not wait for the removals of a dead server's entries
			s.signal()
		}
	}
	s.silent = silent
	for key := range s.tried {
		if e := present[key]; e == nil || e.Version != s.tried[key].version {
			delete(s.tried, key)
		}
	}
	owed := 0
	for key, h := range s.hosts {
		e := present[key]
		if !h.live(s.ending) {
			if (e == nil || e.Controller != s.instance) && now.Sub(h.ended) > lag {
				s.leave(h)
			}
			continue
		}
		if own := s.claims(h, e, expired, now); len(own) > 0 {
			if owed++; owed > maxJobs {
				s.signal()
				break
			}
			jobs = append(jobs, own...)
		}
	}
	return jobs
}

// live reports whether a host has a stream.
func (h *host) live(ending bool) bool { return len(h.sessions) > 0 && !ending }

// silence returns since when an entry has no stream.
func (s *Server) silence(e *Entry, now time.Time) silence {
	if known, ok := s.silent[e.Key]; ok && known.Connection == e.Connection {
		return known
	}
	return silence{e.Connection, now}
}

// departed returns the write for an entry whose workload has no stream at this instance, nil if
// nothing is due. Callers hold mu.
func (s *Server) departed(e *Entry, quiet silence, expired map[string]time.Time,
	now time.Time) func(context.Context) error {
	own := e.Controller == s.instance
	switch {
	case e.connected() && own:
		ended := now
		if h := s.hosts[e.Key]; h != nil && !h.ended.IsZero() {
			ended = h.ended
		}
		return func(ctx context.Context) error { return s.disconnect(ctx, e, ended) }
	case e.connected() && !expired[e.Controller].IsZero():
		return func(ctx context.Context) error { return s.remove(ctx, e, reasonServerLost) }
	case quiet.since.IsZero():
		return nil
	}
	grace := s.options.GracePeriod
	if !own { // its controller removes the entry, unless the controller is gone
		grace += interval
	}
	if now.Sub(quiet.since) < grace {
		return nil
	}
	return func(ctx context.Context) error { return s.remove(ctx, e, reasonDisconnected) }
}

// claims returns the writes for a host with a stream. Callers hold mu.
func (s *Server) claims(h *host, e *Entry, expired map[string]time.Time, now time.Time) []job {
	own := e != nil && e.Controller == s.instance && e.connected()
	lost := (e == nil || !e.connected() || !own && !expired[e.Controller].IsZero()) &&
		now.Sub(h.written) > lag
	for _, one := range slices.Backward(h.sessions) {
		// a session that may still be refused must not keep the entry from another session
		if (lost || !one.claimed) && !now.Before(one.next) {
			return []job{{one: one, run: func(ctx context.Context) error { return s.claim(ctx, one) }}}
		}
	}
	health := h.health()
	if !own || health == nil || !s.mayWrite(e, now) || now.Sub(h.reported) < healthPause ||
		e.Health != nil && e.Health.Healthy == health.Healthy && e.Health.Message == health.Message {
		return nil
	}
	h.reported = now
	return []job{{entry: e, run: func(ctx context.Context) error {
		return s.setHealth(ctx, e, *health)
	}}}
}

// health returns the newest report about a workload, nil if there is none.
func (h *host) health() (newest *Health) {
	for _, one := range h.sessions {
		if one.claimed && one.health != nil && (newest == nil || one.health.ReportedAt.After(newest.ReportedAt)) {
			newest = one.health
		}
	}
	return newest
}

// unused returns the removals of leases that expired long ago and to which no entry refers.
func (s *Server) unused(entries []*Entry) (jobs []job) {
	gone := s.leases.expired(2 * s.expiry())
	for _, e := range entries {
		delete(gone, e.Controller)
	}
	for instance := range gone {
		jobs = append(jobs, job{entry: &Entry{}, run: func(ctx context.Context) error {
			return s.options.Store.Release(ctx, instance)
		}})
	}
	return jobs
}
