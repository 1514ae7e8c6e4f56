package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/part"
)

// Conditions of a Follower.
const (
	ConditionUnavailable = "capture-unavailable" // no helper
	ConditionWithdrawn   = "capture-withdrawn"   // no rules, though Envoy is live
	ConditionTrial       = "capture-trial"
	ConditionFamily      = "capture-family"
	ConditionUnowned     = "capture-unowned" // the rules would outlive the helper
	ConditionDNS         = "capture-dns-withdrawn"
)

// Envoy is what a Follower needs of the supervisor.
type Envoy interface {
	// Serves reports whether an epoch is live, and when half of its drain on request has passed;
	// zero: it does not drain.
	Serves() (live bool, half time.Time)
	Changed() <-chan struct{} // closed at the next change
}

// FollowerOptions configure a Follower.
type FollowerOptions struct {
	Socket   string    // of the helper
	State    string    // the helper's file, which exists while it has settings
	Settings *Settings // nil: nothing is captured
	Users    Users
	Envoy    Envoy
	Board    *condition.Board
	Logger   *slog.Logger
}

// A Follower is the agent's part that sends settings to the helper: once Envoy is live, or while
// the helper refuses connections by earlier ones, and again after each loss of the connection. If
// inbound connections are closed, it sends settings for these at once. While Envoy drains on
// request and after Leave it withdraws the rules, except those for closed inbound connections,
// which Stop alone ends.
type Follower struct {
	FollowerOptions
	part.Readiness
	wake chan struct{} // after Leave

	mu      sync.Mutex
	drain   time.Time // inbound connections are captured until then; zero: Envoy does not drain
	stop    time.Time // inbound connections are captured until then after Leave
	client  *Client   // nil: not connected
	status  Status
	changed chan struct{}
}

// NewFollower returns a Follower.
func NewFollower(o FollowerOptions) *Follower {
	return &Follower{FollowerOptions: o, status: Status{State: Off}, changed: make(chan struct{}),
		wake: make(chan struct{}, 1)}
}

// Name is the part's name.
func (f *Follower) Name() string { return "capture" }

const (
	firstRetry = 200 * time.Millisecond
	maxRetry   = 2 * time.Second
	callTime   = 3 * time.Second
	dnsGrace   = 2 * time.Second // for the DNS proxy of an agent that has just started
)

// Run follows Envoy until ctx ends. The rules stay then: only Stop ends them.
func (f *Follower) Run(ctx context.Context) error {
	f.MarkReady()
	if f.Settings == nil {
		f.Stop(ctx) // what an earlier configuration set up
		<-ctx.Done()
		return nil
	}
	retries := backoff.Backoff{Min: firstRetry, Max: maxRetry}
	for ctx.Err() == nil {
		changed := f.Envoy.Changed()
		if live, _ := f.Envoy.Serves(); !live && !f.hasState() && !f.Settings.ClosesInbound() {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		if err := f.follow(ctx, &retries); err != nil && ctx.Err() == nil {
			f.set(nil, f.lost(err))
			f.Board.Raise(ConditionUnavailable, condition.Error,
				fmt.Sprintf("connections are not captured as configured: %v", err))
		}
		_ = retries.Wait(ctx)
	}
	return nil
}

// follow keeps one connection, until it is lost, and resets retries once it is in use.
func (f *Follower) follow(ctx context.Context, retries *backoff.Backoff) error {
	dialing, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	client, err := Dial(dialing, f.Socket)
	if err != nil {
		return err
	}
	defer client.Close()
	status, err := limited(ctx, client.Status)
	if err != nil {
		return err
	}
	applied, first, wasLive := staying, true, false
	for {
		changed := f.Envoy.Changed()
		live, now, ended := f.phase()
		if !live && status.State == Off {
			now = leaving // nothing was captured yet: outbound connections go on
		}
		if now != applied && live ||
			first && (live || status.Closed || f.Settings.ClosesInbound()) {
			request := f.request(now)
			send := func(ctx context.Context) (Status, error) { return request(client, ctx) }
			if status, err = limited(ctx, send); err != nil &&
				(now != left || errors.Is(err, ErrClosed)) {
				return err
			}
			applied, first = now, false
			f.Board.Clear(ConditionUnavailable)
		} else if live != wasLive { // the helper checks Envoy at each request
			if status, err = limited(ctx, client.Status); err != nil {
				return err
			}
		}
		wasLive = live
		retries.Reset()
		f.set(client, status)
		var late <-chan time.Time
		dns := status.DNS
		if dns.State == Withdrawn {
			late = time.After(dnsGrace)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-client.Done():
			return ErrClosed
		case <-late:
			f.Board.Raise(ConditionDNS, condition.Warning,
				"queries of this host are not redirected to the DNS proxy: "+dns.Reason)
		case status = <-client.Changes():
		case <-changed:
		case <-f.wake:
		case <-ended:
		}
	}
}

func limited[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return call(ctx)
}

// set stores the status and raises what people must know.
func (f *Follower) set(client *Client, status Status) {
	f.mu.Lock()
	was := f.status
	f.client, f.status = client, status
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	if was.State != status.State && status.State != "" {
		f.Logger.Info("interception is " + string(status.State) + because(status.Reason))
	}
	raise := func(code string, severity condition.Severity, holds bool, sentence string) {
		if holds {
			f.Board.Raise(code, severity, sentence)
		} else {
			f.Board.Clear(code)
		}
	}
	severity := condition.Warning
	if f.Settings != nil && (f.Settings.FailClosed || f.Settings.ClosesInbound()) {
		severity = condition.Error
	}
	raise(ConditionWithdrawn, severity,
		client != nil && (status.State == Withdrawn || status.State == Closed),
		fmt.Sprintf("nothing is captured, %s: %s", f.instead(status), status.Reason))
	partial := status.Partial()
	raise(ConditionFamily, condition.Warning,
		partial != "" && f.inbound() && !status.ClosedInbound, partial)
	raise(ConditionTrial, condition.Info, status.State == Trial,
		fmt.Sprintf("connections are captured until %s, unless \"outrider capture confirm\" makes "+
			"it permanent", status.Until.Local().Format(time.TimeOnly)))
	raise(ConditionUnowned, condition.Warning, status.Unowned,
		"this kernel (before 5.12) does not remove the rules when outrider-capture dies; "+
			"\"outrider cleanup\" does")
	if client == nil || status.DNS.State != Withdrawn {
		f.Board.Clear(ConditionDNS)
	}
}

// instead says what happens to connections that are not captured.
func (f *Follower) instead(status Status) string {
	switch {
	case status.Closed && (status.ClosedInbound || !f.inbound()):
		return "new connections are refused"
	case status.Closed:
		return "new outbound connections are refused, inbound ones go direct"
	case status.ClosedInbound:
		return "new inbound connections are refused, outbound ones go direct"
	}
	return "connections go direct"
}

// lost returns the status without a connection to the helper. The table that rejects connections
// outlives the helper; that inbound ones are closed is only claimed if the helper said so.
func (f *Follower) lost(err error) Status {
	was := f.State()
	status := Status{State: Withdrawn, Reason: err.Error(), Closed: f.Settings.FailClosed,
		ClosedInbound: was.ClosedInbound}
	if was.ClosedInbound {
		status.State = Closed
	}
	return status
}

// State returns the last known status, without counters.
func (f *Follower) State() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Changed returns a channel that is closed at the next change of State.
func (f *Follower) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

// inbound reports whether inbound connections are to be captured.
func (f *Follower) inbound() bool {
	return f.Settings != nil && f.Settings.Inbound.any()
}

// AwaitInbound waits until the rules are in force, but not longer than limit, if inbound
// connections are to be captured.
func (f *Follower) AwaitInbound(ctx context.Context, limit time.Duration) {
	if !f.inbound() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for ctx.Err() == nil {
		changed := f.Changed()
		if f.State().State.InForce() {
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// Call calls the helper over the current connection and stores the status.
func (f *Follower) Call(
	ctx context.Context, call func(*Client, context.Context) (Status, error),
) (Status, error) {
	f.mu.Lock()
	client, reason := f.client, f.status.Reason
	f.mu.Unlock()
	switch {
	case f.Settings == nil:
		return Status{}, errors.New("nothing is captured: capture.mode is \"none\"")
	case client == nil && reason == "":
		return Status{}, errNoSettings
	case client == nil:
		return Status{}, errors.New(reason)
	}
	return limited(ctx, func(ctx context.Context) (Status, error) { return call(client, ctx) })
}

// Stop ends the helper if it has settings. It may be called after Run.
func (f *Follower) Stop(ctx context.Context) {
	if !f.hasState() {
		return
	}
	if err := Stop(ctx, f.Socket); err != nil {
		f.Logger.Error("cannot end the interception", "error", err)
	}
}

func (f *Follower) hasState() bool {
	_, err := os.Stat(f.FollowerOptions.State)
	return err == nil
}

// Stop makes the helper behind a socket remove its rules, forget its settings and exit.
func Stop(ctx context.Context, socket string) error {
	_, err := limited(ctx, func(ctx context.Context) (struct{}, error) {
		client, err := Dial(ctx, socket)
		if err != nil {
			return struct{}{}, err
		}
		defer client.Close()
		return struct{}{}, client.Stop(ctx)
	})
	return err
}
