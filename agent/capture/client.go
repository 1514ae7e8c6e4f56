package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// Client is the agent's connection to the helper. Its methods may be called concurrently.
type Client struct {
	socket  net.Conn
	changes chan Status
	done    chan struct{}

	mu      sync.Mutex
	number  uint64
	waiting map[uint64]chan response
}

// ErrClosed reports that the connection to the helper was lost.
var ErrClosed = errors.New("the connection to outrider-capture was lost")

// Dial connects to the helper's socket.
func Dial(ctx context.Context, path string) (*Client, error) {
	var dialer net.Dialer
	socket, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to outrider-capture: %w", err)
	}
	c := &Client{socket: socket, changes: make(chan Status, 1), done: make(chan struct{}),
		waiting: map[uint64]chan response{}}
	go c.read()
	return c, nil
}

// Close closes the connection. The rules stay as they are.
func (c *Client) Close() {
	_ = c.socket.Close()
	<-c.done
}

// Done is closed when the connection is lost.
func (c *Client) Done() <-chan struct{} { return c.done }

// Changes returns the status after each change. Only the newest is kept for a slow reader.
func (c *Client) Changes() <-chan Status { return c.changes }

// Apply sends settings, which are in force while Envoy serves.
func (c *Client) Apply(ctx context.Context, settings Settings) (Status, error) {
	return c.call(ctx, request{Operation: opApply, Settings: &settings})
}

// Withdraw removes the rules until the next Apply. Established connections stay redirected.
func (c *Client) Withdraw(ctx context.Context) (Status, error) {
	return c.call(ctx, request{Operation: opWithdraw})
}

// Try puts the rules in force for a time, unless Confirm makes it permanent.
func (c *Client) Try(ctx context.Context, limit time.Duration) (Status, error) {
	return c.call(ctx, request{Operation: opTry, For: limit})
}

// Confirm ends a trial: the rules stay in force.
func (c *Client) Confirm(ctx context.Context) (Status, error) {
	return c.call(ctx, request{Operation: opConfirm})
}

// Status returns the helper's status with counters.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return c.call(ctx, request{Operation: opStatus})
}

// Stop makes the helper remove all rules, forget the settings and exit.
func (c *Client) Stop(ctx context.Context) error {
	_, err := c.call(ctx, request{Operation: opStop})
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

func (c *Client) call(ctx context.Context, r request) (Status, error) {
	answer := make(chan response, 1)
	c.mu.Lock()
	c.number++
	r.Protocol, r.Number = cmp.Or(r.Protocol, protocolVersion), c.number
	c.waiting[r.Number] = answer
	err := c.socket.SetWriteDeadline(time.Now().Add(5 * time.Second))
	if err == nil {
		err = writeLine(c.socket, r)
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, r.Number)
		c.mu.Unlock()
	}()
	if err != nil {
		return Status{}, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	select {
	case <-ctx.Done():
		return Status{}, ctx.Err()
	case <-c.done:
		return Status{}, ErrClosed
	case got := <-answer:
		if strings.HasPrefix(got.Error, "protocol ") {
			got.Error += `; run "systemctl reload outrider-capture.service"`
		}
		if got.Error != "" {
			return Status{}, errors.New(got.Error)
		}
		if got.Status == nil {
			return Status{}, errors.New("the answer of outrider-capture is incomplete")
		}
		return *got.Status, nil
	}
}

func (c *Client) read() {
	defer close(c.done)
	lines := newLineReader(c.socket)
	for {
		var got response
		if err := readLine(lines, &got); err != nil {
			_ = c.socket.Close()
			return
		}
		if got.Number == 0 && got.Status != nil {
			select {
			case <-c.changes:
			default:
			}
			c.changes <- *got.Status
			continue
		}
		c.mu.Lock()
		if answer := c.waiting[got.Number]; answer != nil {
			answer <- got
			delete(c.waiting, got.Number)
		}
		c.mu.Unlock()
	}
}
