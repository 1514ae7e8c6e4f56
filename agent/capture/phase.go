package capture

import (
	"context"
	"errors"
	"time"
)

// phase is what a Follower captures.
type phase int

const (
	staying phase = iota
	leaving       // inbound connections only; for as long as Envoy lives if these are closed
	left          // nothing
)

// phase returns the current phase, and a channel that receives when it ends. In a mesh,
// clients learn only when a drain or a stop begins that the host leaves, and the application cannot
// end their TLS: inbound connections are captured for longer than outbound ones. A drain that
// several epochs follow, and a stop after it, count from the first.
func (f *Follower) phase() (live bool, now phase, ended <-chan time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	live, half := f.Envoy.Serves()
	if live && (half.IsZero() || f.drain.IsZero() || half.Before(f.drain)) {
		f.drain = half
	}
	ends := f.drain
	if ends.IsZero() || !f.stop.IsZero() && f.stop.Before(ends) {
		ends = f.stop
	}
	switch rest := time.Until(ends); {
	case ends.IsZero():
		return live, staying, nil
	case f.Settings.ClosesInbound():
		return live, leaving, nil
	case rest > 0 && f.inbound():
		return live, leaving, time.After(rest)
	}
	return live, left, nil
}

// settings returns the settings of a phase.
func (f *Follower) settings(now phase) *Settings {
	settings := *f.Settings
	settings.InboundOnly = now == leaving
	return &settings
}

// request returns the call that makes the helper do what a phase needs.
func (f *Follower) request(now phase) func(*Client, context.Context) (Status, error) {
	if now == left {
		return (*Client).Withdraw
	}
	return func(c *Client, ctx context.Context) (Status, error) {
		return c.Apply(ctx, *f.settings(now))
	}
}

// Leave ends the interception for good, before Envoy's listeners close: outbound at once, inbound
// after limit. Established connections stay redirected. If the helper cannot be reached, Run tries
// again.
func (f *Follower) Leave(ctx context.Context, limit time.Duration) {
	if f.Settings == nil {
		return
	}
	f.mu.Lock()
	f.stop = time.Now().Add(limit)
	f.mu.Unlock()
	_, now, _ := f.phase()
	_, err := f.Call(ctx, f.request(now))
	if err != nil && !errors.Is(err, errNoSettings) {
		f.Logger.Warn("cannot withdraw the interception", "error", err)
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}
