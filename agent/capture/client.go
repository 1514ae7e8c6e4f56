package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"outrider.org/outrider/agent/rpc"
)

// Client is the agent's connection to outrider-capture. Its methods may be called concurrently.
type Client struct {
	calls   *rpc.Client[response]
	changes chan Status
}

// errClosed reports that the connection to outrider-capture was lost.
var errClosed = errors.New("the connection to outrider-capture was lost")

// Dial connects to outrider-capture's socket.
func Dial(ctx context.Context, path string) (*Client, error) {
	connection, err := rpc.Dial(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("connect to outrider-capture: %w", err)
	}
	c := &Client{changes: make(chan Status, 1)}
	c.calls = rpc.NewClient(connection, errClosed, c.changed)
	return c, nil
}

// Close closes the connection. The rules stay as they are.
func (c *Client) Close() { c.calls.Close() }

// Done is closed when the connection is lost.
func (c *Client) Done() <-chan struct{} { return c.calls.Done() }

// Changes delivers the status after each change. A slow reader receives only the newest one.
func (c *Client) Changes() <-chan Status { return c.changes }

// Apply sends settings to outrider-capture. They take effect while Envoy serves.
func (c *Client) Apply(ctx context.Context, settings Settings) (Status, error) {
	return c.call(ctx, request{Operation: opApply, Settings: &settings})
}

// Withdraw removes the rules until the next Apply. Established connections stay redirected.
func (c *Client) Withdraw(ctx context.Context) (Status, error) {
	return c.call(ctx, request{Operation: opWithdraw})
}

// StartTrial puts the rules in force for at most limit, unless ConfirmTrial keeps them.
func (c *Client) StartTrial(ctx context.Context, limit time.Duration) (Status, error) {
	return c.call(ctx, request{Operation: opTry, For: limit})
}

// ConfirmTrial ends a trial: the rules stay in force.
func (c *Client) ConfirmTrial(ctx context.Context) (Status, error) {
	return c.call(ctx, request{Operation: opConfirm})
}

// Status returns outrider-capture's status with counters.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return c.call(ctx, request{Operation: opStatus})
}

// Stop makes outrider-capture remove all rules, forget the settings and exit.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.call(ctx, request{Operation: opStop})
	if errors.Is(err, errClosed) {
		return nil
	}
	return err
}

// reload is the suggested command, which replaces a running outrider-capture of an earlier version
// by the installed one.
const reload = `run "systemctl reload outrider-capture.service"`

func (c *Client) call(ctx context.Context, r request) (Status, error) {
	answers, err := c.calls.Call(ctx, func(number uint64) any {
		r.Protocol, r.Number = cmp.Or(r.Protocol, protocolVersion), number
		return r
	})
	if errors.Is(err, rpc.ErrUnframed) {
		return Status{}, errors.New("outrider-capture has an older version than the agent; " +
			reload)
	}
	if err != nil {
		return Status{}, err
	}
	got := answers[0]
	if strings.HasPrefix(got.Error, "protocol ") {
		got.Error += "; " + reload
	}
	if got.Error != "" {
		return Status{}, errors.New(got.Error)
	}
	if got.Status == nil {
		return Status{}, errors.New("the answer of outrider-capture is incomplete")
	}
	return *got.Status, nil
}

// changed passes a new status to the reader of Changes.
func (c *Client) changed(r response) {
	if r.Status == nil {
		return
	}
	select {
	case <-c.changes:
	default:
	}
	c.changes <- *r.Status
}
