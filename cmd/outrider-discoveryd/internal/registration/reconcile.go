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
	writers = 16 // concurrent writes
	// maximum number of writes in one reconciliation, counted separately for entries with and
	// without streams
	maxJobs  = 256
	gathered = 50 * time.Millisecond // events within this time cause one reconciliation
	stopTime = 3 * time.Second       // bounds the writes after the server was stopped
	// lag is the maximum age of the entries that Store.Entries returns
	lag           = time.Second
	shortestRetry = 500 * time.Millisecond
	longestRetry  = 30 * time.Second
	// duration of a failure of the store after which conditionStore is raised
	reportDown = 5 * time.Second
	// healthPause is the minimum interval between two writes of a workload's health.
	healthPause = time.Second
)

// conditionStore is active while the store of registered workloads cannot be used.
const conditionStore = "registration-store-down"

// Reasons for the removal of an entry, in metrics and log lines.
const (
	reasonDisconnected = "disconnected"
	reasonServerLost   = "server_lost"
)

// silence is the time, by this host's clock, at which an entry was first seen with a Connection
// without a stream.
type silence struct {
	Connection
	since time.Time
}

func retryPause(failures int) time.Duration {
	return backoff.Exponential(shortestRetry, longestRetry, failures)
}

// Name returns the name of the component.
func (s *Server) Name() string { return "registration" }

// Run reconciles the entries with the streams until ctx ends, and then marks the workloads of this
// server as disconnected. The caller should end all streams before it cancels ctx.
func (s *Server) Run(ctx context.Context) error {
	working, end := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	stored := make(chan error, 1)
	running.Go(func() { stored <- s.options.Store.Run(working) })
	running.Go(func() { s.keepLease(working) })
	defer running.Wait()
	defer end()
	s.options.Logger.Info("registration of workloads is enabled", "instance", s.instance,
		"grace_period",
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

// stop writes to the entries of this server's workloads that they have no stream.
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

// recent reports whether Store.Entries may not contain the last write of this server yet.
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

// job is a write to the store that reconcile makes.
type job struct {
	entry *WorkloadEntry // entry to write; nil: run reads it from the store
	one   *session
	run   func(context.Context) error
}

// reconcile compares the entries with the streams and the leases, makes the necessary writes, and
// returns their number.
func (s *Server) reconcile(ctx context.Context, now time.Time) int {
	entries, err := s.options.Store.Entries()
	if err == nil {
		err = s.leases.problem()
	}
	var jobs []job
	if err != nil || !s.serving.Load() {
		// While the store fails, workloads cannot register with another server: grace periods start
		// anew.
		s.silent = nil
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

// finish processes the result of a call of claim, by which reconcile registers a session's
// workload. If the registration is refused, it ends the stream.
func (s *Server) finish(one *session, err error) {
	s.retry(one, err)
	s.mu.Lock()
	// Once a session has claimed the entry, a later refusal does not end its stream: for example,
	// the WorkloadGroup may have been removed.
	claimed := one.claimed
	s.mu.Unlock()
	if claimed || !isRefusal(err) {
		return
	}
	select {
	case one.refused <- err:
	default: // an earlier error already ends the stream
	}
}

// due returns the necessary writes: those for workloads with a stream to this server, and those for
// entries whose workloads have none.
func (s *Server) due(entries []*WorkloadEntry, expired map[string]time.Time,
	now time.Time) (jobs []job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	silent := map[Key]silence{}
	present := make(map[Key]*WorkloadEntry, len(entries))
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
		// Further removals wait for the next call, so that the many entries of a dead server do not
		// delay workloads with streams.
		default:
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

// live reports whether the host has a stream. If ending is set, the server has stopped, and all
// streams count as ended.
func (h *host) live(ending bool) bool { return len(h.sessions) > 0 && !ending }

// silence returns the time since which the entry has had its current Connection without a stream.
func (s *Server) silence(e *WorkloadEntry, now time.Time) silence {
	if known, ok := s.silent[e.Key]; ok && known.Connection == e.Connection {
		return known
	}
	return silence{e.Connection, now}
}

// departed returns the necessary write for an entry whose workload has no stream to this server: to
// mark it as disconnected, or to remove it. It returns nil if no write is necessary yet. Callers
// hold mu.
func (s *Server) departed(e *WorkloadEntry, quiet silence, expired map[string]time.Time,
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
	if !own { // the entry's controller, another server, may remove the entry first
		grace += interval
	}
	if now.Sub(quiet.since) < grace {
		return nil
	}
	return func(ctx context.Context) error { return s.remove(ctx, e, reasonDisconnected) }
}

// claims returns the necessary write for a host with a stream: one that makes this server the
// controller of the host's WorkloadEntry, or one that updates the health in the entry. It returns
// none if no write is necessary yet. Callers hold mu.
func (s *Server) claims(h *host, e *WorkloadEntry, expired map[string]time.Time,
	now time.Time) []job {
	own := e != nil && e.Controller == s.instance && e.connected()
	lost := (e == nil || !e.connected() || !own && !expired[e.Controller].IsZero()) &&
		now.Sub(h.written) > lag
	for _, one := range slices.Backward(h.sessions) {
		// Each session must claim the entry itself: the session that has claimed it before may be
		// refused now, for example.
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

// health returns the newest health report of the sessions that have claimed the entry; nil: none.
func (h *host) health() (newest *Health) {
	for _, one := range h.sessions {
		if one.claimed && one.health != nil && (newest == nil || one.health.ReportedAt.After(newest.ReportedAt)) {
			newest = one.health
		}
	}
	return newest
}

// unused returns the removals of leases that expired long ago and whose servers are the controllers
// of no entry.
func (s *Server) unused(entries []*WorkloadEntry) (jobs []job) {
	gone := s.leases.expired(2 * s.expiry())
	for _, e := range entries {
		delete(gone, e.Controller)
	}
	for instance := range gone {
		jobs = append(jobs, job{entry: &WorkloadEntry{}, run: func(ctx context.Context) error {
			return s.options.Store.ReleaseLease(ctx, instance)
		}})
	}
	return jobs
}
