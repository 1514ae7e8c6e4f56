package resolved

import (
	"context"
	"errors"
	"syscall"
	"time"

	"outrider.org/outrider/agent/rpc"
)

// protocolVersion is increased whenever the meaning of a message changes.
const protocolVersion = 1

type request struct {
	Protocol int      `json:"protocol"`
	Number   uint64   `json:"number"`
	Route    DNSRoute `json:"route"`
}

type response struct {
	Number uint64 `json:"number"`
	// The JSON key "Error" must not change: agents of older versions read it. "" = the route is in
	// force.
	Error string `json:",omitempty"`
}

// RequestNumber implements rpc.Response.
func (r response) RequestNumber() (uint64, bool) { return r.Number, false }

// ErrHelperEnded reports that the connection to the helper was lost.
var ErrHelperEnded = errors.New("outrider-resolved@.service has ended")

// Client is the agent's connection to the helper process.
type Client struct {
	calls  *rpc.Client[response]
	socket *rpc.Conn
}

// Dial connects to the helper's socket, which starts a helper.
func Dial(ctx context.Context, path string) (*Client, error) {
	connection, err := rpc.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return &Client{rpc.NewClient(connection, ErrHelperEnded, func(response) {}), connection}, nil
}

// SyscallConn implements syscall.Conn.
func (c *Client) SyscallConn() (syscall.RawConn, error) { return c.socket.SyscallConn() }

// Close closes the client's descriptor of the connection. The helper removes the route when the
// last duplicate of the descriptor is closed.
func (c *Client) Close() { c.calls.Close() }

// Done is closed when the connection is lost.
func (c *Client) Done() <-chan struct{} { return c.calls.Done() }

// Apply makes the helper put a route in force.
func (c *Client) Apply(ctx context.Context, route DNSRoute) error {
	ctx, cancel := context.WithTimeout(ctx, applyTime+time.Second)
	defer cancel()
	answers, err := c.calls.Call(ctx, func(number uint64) any {
		return request{Protocol: protocolVersion, Number: number, Route: route}
	})
	if errors.Is(err, rpc.ErrUnframed) {
		return errors.New("outrider-resolved@.service has an older version than the agent")
	}
	if err != nil {
		return err
	}
	if text := answers[0].Error; text != "" {
		return errors.New(text)
	}
	return nil
}
