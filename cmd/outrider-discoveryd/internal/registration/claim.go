package registration

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errLease prevents writes before this server has a lease. Without a lease, no other server would
// remove the entries of this one if it ended.
var errLease = errors.New("the lease of this server has not been written yet")

// errBusy postpones the registration of a workload, because too many others are in progress.
var errBusy = errors.New("too many workloads register at the same time")

// claimInTurn calls claim for a new stream. It limits the number of concurrent calls, because more
// would make the store slow.
func (s *Server) claimInTurn(ctx context.Context, one *session) error {
	timer := time.NewTimer(requestTime)
	defer timer.Stop()
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
		return s.claim(ctx, one)
	case <-timer.C:
		return errBusy
	case <-ctx.Done():
		return ctx.Err()
	}
}

// claim creates the entry for a session's workload, or records this server as the controller of an
// existing entry. An error that is a gRPC status is final; other errors may be retried.
func (s *Server) claim(ctx context.Context, one *session) error {
	one.host.writing.Lock()
	defer one.host.writing.Unlock()
	var err error
	for range attempts {
		if err = s.write(ctx, one); !errors.Is(err, ErrConflict) {
			break
		}
	}
	if errors.Is(err, ErrInvalid) {
		return status.Errorf(codes.FailedPrecondition, "registration of WorkloadEntry %s: %v",
			one.host.key, err)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	one.claimed, one.host.written = true, time.Now()
	s.mu.Unlock()
	return nil
}

// write makes one attempt to write the entry for a session's workload.
func (s *Server) write(ctx context.Context, one *session) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if !s.leases.renewed() {
		return errLease
	}
	e, err := s.options.Store.Get(ctx, one.host.key)
	if err != nil {
		return err
	}
	if e == nil {
		return s.create(ctx, one)
	}
	if e.Group == "" {
		return status.Errorf(codes.FailedPrecondition, "WorkloadEntry %s exists, but nobody "+
			"registered it: remove it, or register with another WorkloadGroup", e.Key)
	}
	if err := one.mayHave(e.ServiceAccount); err != nil {
		return err
	}
	own := e.Controller == s.instance && e.connected()
	if own && !e.ConnectedAt.Before(one.since) {
		return nil
	}
	// istiod ignores a connection that is older than the one in the entry. Hosts' clocks differ, so
	// this connection gets a time that is later than those in the entry.
	at := one.since
	for _, known := range []time.Time{e.ConnectedAt, e.DisconnectedAt} {
		if !at.After(known) {
			at = known.Add(time.Nanosecond)
		}
	}
	if err := s.options.Store.SetConnection(ctx, e, Connection{Controller: s.instance,
		ConnectedAt: at}); err != nil || own {
		return err
	}
	s.counters.takeovers.Add(1)
	s.options.Logger.Info("took over workload", append(one.fields(), "previous", e.Controller)...)
	return nil
}

// create creates the entry for a session's workload from its WorkloadGroup.
func (s *Server) create(ctx context.Context, one *session) error {
	group, err := s.options.Store.Group(ctx, one.applied.group)
	if err != nil {
		return err
	}
	if group == nil {
		return status.Errorf(codes.FailedPrecondition, "auto-registration of WorkloadEntry %s failed: "+
			"cannot find WorkloadGroup %s", one.host.key, one.applied.group)
	}
	w := one.applied.workload(group)
	if err := one.mayHave(w.Spec.ServiceAccount); err != nil {
		return err
	}
	if err := s.options.Store.Create(ctx, w, Connection{Controller: s.instance,
		ConnectedAt: one.since}); err != nil {
		return err
	}
	s.counters.created.Add(1)
	s.options.Logger.Info("registered workload", append(one.fields(), "group", group.Name)...)
	return nil
}

// mayHave returns a gRPC status if the session's identity is not the service account of the entry.
// Server.enter has checked the namespace.
func (one *session) mayHave(account string) error {
	if account != "" && account != one.identity.Account {
		return status.Errorf(codes.PermissionDenied, "WorkloadEntry %s is of service account %q, "+
			"not of %s", one.host.key, account, one.identity)
	}
	return nil
}

// fields returns the fields for log lines about a session.
func (one *session) fields() []any {
	return append(one.host.key.fields(), "identity", one.identity.String(), "address", one.address)
}

func (k Key) fields() []any { return []any{"namespace", k.Namespace, "entry", k.Name} }

// connected reports whether the workload of an entry has a stream.
func (c Connection) connected() bool { return !c.ConnectedAt.IsZero() }

// disconnect records in an entry that its workload has had no stream since the time at.
func (s *Server) disconnect(ctx context.Context, e *WorkloadEntry, at time.Time) error {
	if !at.After(e.ConnectedAt) {
		at = e.ConnectedAt.Add(time.Nanosecond)
	}
	err := s.options.Store.SetConnection(ctx, e, Connection{Controller: s.instance,
		DisconnectedAt: at})
	if err == nil {
		s.counters.disconnected.Add(1)
		s.options.Logger.Info("workload disconnected", e.fields()...)
	}
	return err
}

// remove removes an entry, because its workload or its server has left. It counts the removal by
// reason.
func (s *Server) remove(ctx context.Context, e *WorkloadEntry, reason string) error {
	err := s.options.Store.Delete(ctx, e)
	if err == nil {
		s.counters.removed(reason).Add(1)
		s.options.Logger.Info("removed workload", append(e.fields(), "reason", reason, "controller",
			e.Controller)...)
	}
	return err
}

// setHealth writes the health that the agent has reported to an entry.
func (s *Server) setHealth(ctx context.Context, e *WorkloadEntry, h Health) error {
	err := s.options.Store.SetHealth(ctx, e, h)
	if err == nil {
		s.options.Logger.Debug("reported health of workload changed", append(e.fields(), "healthy",
			h.Healthy, "message", fmt.Sprintf("%.200s", h.Message))...)
	}
	return err
}
