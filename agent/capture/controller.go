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
	"outrider.org/outrider/agent/lifecycle"
)

// Conditions of a Controller.
const (
	ConditionUnavailable        = "capture-unavailable" // outrider-capture cannot be reached
	ConditionWithdrawn          = "capture-withdrawn"   // no rules, though Envoy is live
	ConditionTrial              = "capture-trial"
	ConditionFamilyUncaptured   = "capture-family"
	ConditionRulesOutliveHelper = "capture-unowned" // the rules would outlive outrider-capture
	ConditionDNSWithdrawn       = "capture-dns-withdrawn"
)

// Envoy is the live epoch as seen by a Controller; the supervisor implements it.
type Envoy interface {
	// Serves reports whether an epoch is live. halfDrainTime is the time when half of the epoch's
	// requested drain has passed; zero: the epoch does not drain.
	Serves() (live bool, halfDrainTime time.Time)
	Changed() <-chan struct{} // closed at the next change
}

// ControllerOptions configures a Controller.
type ControllerOptions struct {
	Socket     string    // of outrider-capture
	StateFile  string    // state file of outrider-capture, which exists while it has settings
	Settings   *Settings // nil: nothing is captured
	Users      Users
	Envoy      Envoy
	Conditions *condition.Registry
	Logger     *slog.Logger
}

// A Controller sends the agent's settings to outrider-capture: once Envoy is live, and again after
// each loss of the connection. It sends them before Envoy is live if they close inbound
// connections, or if outrider-capture still rejects connections because of earlier settings. During
// a requested drain, and after EndInterception, it withdraws the rules. Only Stop ends the
// rejection of inbound connections.
type Controller struct {
	ControllerOptions
	lifecycle.Readiness
	wake chan struct{} // receives after EndInterception

	mu      sync.Mutex
	drain   time.Time // end of the inbound capture of a drain; zero: Envoy does not drain
	stop    time.Time // end of the inbound capture after EndInterception
	client  *Client   // nil: not connected
	status  Status
	known   bool // status came from outrider-capture, or it certainly is not running
	changed chan struct{}
}

// NewController returns a Controller.
func NewController(o ControllerOptions) *Controller {
	return &Controller{ControllerOptions: o, status: Status{State: StateOff}, changed: make(chan struct{}),
		wake: make(chan struct{}, 1)}
}

// Name is the component's name.
func (c *Controller) Name() string { return "capture" }

const (
	firstRetry = 200 * time.Millisecond
	maxRetry   = 2 * time.Second
	callTime   = 3 * time.Second
	dnsGrace   = 2 * time.Second // time for the DNS proxy of a new agent to start
	// replaceTime is the time within which a lost connection is not reported, because an upgrade
	// may be replacing outrider-capture, whose rules remain.
	replaceTime  = 2 * time.Second
	replaceRetry = 50 * time.Millisecond
)

// Run sends settings to outrider-capture until ctx ends. The rules remain in force then; only Stop
// removes them.
func (c *Controller) Run(ctx context.Context) error {
	c.MarkReady()
	if c.Settings == nil {
		c.Stop(ctx) // removes the rules of an earlier configuration
		<-ctx.Done()
		return nil
	}
	retries := backoff.Backoff{Min: firstRetry, Max: maxRetry}
	replaced := time.Now() // end of the last connection longer than replaceTime; at first now
	for ctx.Err() == nil {
		changed := c.Envoy.Changed()
		if live, _ := c.Envoy.Serves(); !live && !c.hasState() &&
			!c.Settings.RejectsInboundOnFailure() {
			c.mu.Lock()
			c.known = true // outrider-capture has no settings and captures nothing
			c.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		began := time.Now()
		err := c.runConnection(ctx, &retries)
		if time.Since(began) > replaceTime {
			replaced = time.Now()
		}
		if errors.Is(err, errClosed) && time.Since(replaced) < replaceTime {
			_ = backoff.Sleep(ctx, replaceRetry)
			continue
		}
		if err != nil && ctx.Err() == nil {
			c.set(nil, c.lost(err))
			c.Conditions.Raise(ConditionUnavailable, condition.Error,
				fmt.Sprintf("connections are not captured as configured: %v", err))
		}
		_ = retries.Wait(ctx)
	}
	return nil
}

// runConnection sends settings to outrider-capture until the connection is lost. It resets retries
// once the connection is in use.
func (c *Controller) runConnection(ctx context.Context, retries *backoff.Backoff) error {
	dialing, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	client, err := Dial(dialing, c.Socket)
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
		changed := c.Envoy.Changed()
		live, now, ended := c.phase()
		if !live && status.State == StateOff {
			now = leaving // nothing is captured yet: leave outbound connections direct
		}
		if now != applied && live ||
			first && (live || status.OutboundRejected || c.Settings.RejectsInboundOnFailure()) {
			request := c.request(now)
			send := func(ctx context.Context) (Status, error) { return request(client, ctx) }
			if status, err = limited(ctx, send); err != nil &&
				(now != left || errors.Is(err, errClosed)) {
				return err
			}
			applied, first = now, false
			c.Conditions.Clear(ConditionUnavailable)
		} else if live != wasLive { // a request makes outrider-capture check Envoy at once
			if status, err = limited(ctx, client.Status); err != nil {
				return err
			}
		}
		wasLive = live
		retries.Reset()
		c.set(client, status)
		var late <-chan time.Time
		dns := status.DNS
		if dns.State == StateWithdrawn {
			late = time.After(dnsGrace)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-client.Done():
			return errClosed
		case <-late:
			c.Conditions.Raise(ConditionDNSWithdrawn, condition.Warning,
				"queries of this host are not redirected to the DNS proxy: "+dns.Reason)
		case status = <-client.Changes():
		case <-changed:
		case <-c.wake:
		case <-ended:
		}
	}
}

func limited[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return call(ctx)
}

// set stores the status, and raises or clears conditions.
func (c *Controller) set(client *Client, status Status) {
	c.mu.Lock()
	was := c.status
	c.client, c.status, c.known = client, status, true
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	if was.State != status.State && status.State != "" {
		c.Logger.Info("interception state changed", "state", status.State, "reason", status.Reason)
	}
	raise := func(code string, severity condition.Severity, holds bool, sentence string) {
		if holds {
			c.Conditions.Raise(code, severity, sentence)
		} else {
			c.Conditions.Clear(code)
		}
	}
	severity := condition.Warning
	if c.Settings != nil && (c.Settings.FailOutboundClosed ||
		c.Settings.RejectsInboundOnFailure()) {
		severity = condition.Error
	}
	raise(ConditionWithdrawn, severity,
		client != nil && (status.State == StateWithdrawn || status.State == StateClosed),
		fmt.Sprintf("nothing is captured, %s: %s", c.instead(status), status.Reason))
	partial := status.UncapturedFamily()
	raise(ConditionFamilyUncaptured, condition.Warning,
		partial != "" && c.inbound() && !status.InboundRejected, partial)
	raise(ConditionTrial, condition.Info, status.State == StateTrial,
		fmt.Sprintf("connections are captured until %s, unless \"outrider capture confirm\" makes "+
			"it permanent", status.Until.Local().Format(time.TimeOnly)))
	raise(ConditionRulesOutliveHelper, condition.Warning, status.RulesOutliveHelper,
		"this kernel (before 5.12) does not remove the rules when outrider-capture dies; "+
			"\"outrider cleanup\" does")
	if client == nil || status.DNS.State != StateWithdrawn {
		c.Conditions.Clear(ConditionDNSWithdrawn)
	}
}

// instead returns a sentence on what happens to connections that are not captured.
func (c *Controller) instead(status Status) string {
	switch {
	case status.OutboundRejected && (status.InboundRejected || !c.inbound()):
		return "new connections are refused"
	case status.OutboundRejected:
		return "new outbound connections are refused, inbound ones go direct"
	case status.InboundRejected:
		return "new inbound connections are refused, outbound ones go direct"
	}
	return "connections go direct"
}

// lost returns the status to report without a connection to outrider-capture. The table that
// rejects connections remains; inbound connections are reported as closed only if outrider-capture
// had confirmed that.
func (c *Controller) lost(err error) Status {
	was := c.State()
	status := Status{State: StateWithdrawn, Reason: err.Error(),
		OutboundRejected: c.Settings.FailOutboundClosed,
		InboundRejected:  was.InboundRejected}
	if was.InboundRejected {
		status.State = StateClosed
	}
	return status
}

// State returns the last known status, without counters.
func (c *Controller) State() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Changed returns a channel that is closed at the next change of State.
func (c *Controller) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// inbound reports whether inbound connections are to be captured.
func (c *Controller) inbound() bool {
	return c.Settings != nil && c.Settings.Inbound.any()
}

// AwaitInboundRules waits, for at most limit, until the rules are in force. It returns at once if
// no inbound connections are to be captured.
func (c *Controller) AwaitInboundRules(ctx context.Context, limit time.Duration) {
	if !c.inbound() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for ctx.Err() == nil {
		changed := c.Changed()
		if c.State().State.InForce() {
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// CallHelper calls outrider-capture over the current connection and stores the returned status.
func (c *Controller) CallHelper(
	ctx context.Context, call func(*Client, context.Context) (Status, error),
) (Status, error) {
	c.mu.Lock()
	client, reason := c.client, c.status.Reason
	c.mu.Unlock()
	switch {
	case c.Settings == nil:
		return Status{}, errors.New("nothing is captured: capture.mode is \"none\"")
	case client == nil && reason == "":
		return Status{}, errNoSettings
	case client == nil:
		return Status{}, errors.New(reason)
	}
	return limited(ctx, func(ctx context.Context) (Status, error) { return call(client, ctx) })
}

// Stop ends outrider-capture if it has settings. It may also be called after Run has returned.
func (c *Controller) Stop(ctx context.Context) {
	if !c.hasState() {
		return
	}
	if err := StopHelper(ctx, c.Socket); err != nil {
		c.Logger.Error("cannot end the interception", "error", err)
	}
}

func (c *Controller) hasState() bool {
	_, err := os.Stat(c.ControllerOptions.StateFile)
	return err == nil
}

// StopHelper makes the outrider-capture that listens on a socket remove its rules, forget its
// settings and exit.
func StopHelper(ctx context.Context, socket string) error {
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
