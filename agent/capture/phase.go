package capture

import (
	"context"
	"errors"
	"time"
)

// phase is the part of the settings that a Controller applies.
type phase int

const (
	staying phase = iota
	leaving       // inbound connections only; for as long as Envoy lives if these are closed
	left          // nothing
)

// phase returns the current phase, and a channel that receives when it ends. In a mesh,
// clients learn only when a drain or a stop begins that the host leaves, and the application cannot
// end their TLS: inbound connections are captured for longer than outbound ones. A drain that
// several epochs drain, and a stop after it, count from the first.
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
	case c.Settings.ClosesInbound():
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

// request returns the call to the helper that a phase needs.
func (c *Controller) request(now phase) func(*Client, context.Context) (Status, error) {
	if now == left {
		return (*Client).Withdraw
	}
	return func(client *Client, ctx context.Context) (Status, error) {
		return client.Apply(ctx, *c.settings(now))
	}
}

// Leave ends the interception for good, before Envoy's listeners close: outbound at once, inbound
// after limit. Established connections stay redirected. If the helper cannot be reached, Run tries
// again.
func (c *Controller) Leave(ctx context.Context, limit time.Duration) {
	if c.Settings == nil {
		return
	}
	c.mu.Lock()
	c.stop = time.Now().Add(limit)
	c.mu.Unlock()
	_, now, _ := c.phase()
	_, err := c.Call(ctx, c.request(now))
	if err != nil && !errors.Is(err, errNoSettings) {
		c.Logger.Warn("cannot withdraw the interception", "error", err)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
