package capture

import (
	"context"
	"errors"
	"time"
)

// phase determines which connections a Controller captures: all of the settings while Envoy serves
// (staying), inbound ones only (leaving), or none (left).
type phase int

const (
	staying phase = iota
	leaving       // with FailInboundClosed this phase lasts until Stop
	left
)

// phase returns the current phase and a channel that receives when the phase ends.
//
// When a drain or stop begins, clients of the mesh still send requests, and the application cannot
// terminate their TLS. Inbound connections are therefore captured for longer than outbound ones. If
// a drain spans several epochs, or a stop follows it, the time counts from the start of the drain.
func (c *Controller) phase() (live bool, now phase, ended <-chan time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	live, half := c.Envoy.Serves()
	if live && (half.IsZero() || c.drain.IsZero() || half.Before(c.drain)) {
		c.drain = half
	}
	ends := c.drain
	if ends.IsZero() || !c.stop.IsZero() && c.stop.Before(ends) {
		ends = c.stop
	}
	switch rest := time.Until(ends); {
	case ends.IsZero():
		return live, staying, nil
	case c.Settings.RejectsInboundOnFailure():
		return live, leaving, nil
	case rest > 0 && c.inbound():
		return live, leaving, time.After(rest)
	}
	return live, left, nil
}

// settings returns the settings of a phase.
func (c *Controller) settings(now phase) *Settings {
	settings := *c.Settings
	settings.InboundOnly = now == leaving
	return &settings
}

// request returns the call to outrider-capture that puts a phase into effect: it applies settings,
// or withdraws the rules.
func (c *Controller) request(now phase) func(*Client, context.Context) (Status, error) {
	if now == left {
		return (*Client).Withdraw
	}
	return func(client *Client, ctx context.Context) (Status, error) {
		return client.Apply(ctx, *c.settings(now))
	}
}

// EndInterception ends the interception permanently, before Envoy's listeners close: for outbound
// connections at once, for inbound ones after limit. Established connections stay redirected. If
// outrider-capture cannot be reached, Run retries.
func (c *Controller) EndInterception(ctx context.Context, limit time.Duration) {
	if c.Settings == nil {
		return
	}
	c.mu.Lock()
	c.stop = time.Now().Add(limit)
	c.mu.Unlock()
	_, now, _ := c.phase()
	_, err := c.CallHelper(ctx, c.request(now))
	if err != nil && !errors.Is(err, errNoSettings) {
		c.Logger.Warn("cannot withdraw the interception", "error", err)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
