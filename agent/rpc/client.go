package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Response is a message that a helper process sends: part of the answer to a request, or an event.
type Response interface {
	// RequestNumber returns the number of the request that the message answers, 0 for an event.
	// more reports whether further messages with this number follow.
	RequestNumber() (number uint64, more bool)
}

// maxMessages bounds the number of messages that answer one request, so that a faulty helper cannot
// exhaust the agent's memory. The keeper sends one for each Envoy process, of which there are fewer
// than 100.
const maxMessages = 256

// Client sends requests to a helper and returns the helper's answers. Its methods may be called
// concurrently.
type Client[R Response] struct {
	conn  *Conn
	lost  error
	event func(R)
	done  chan struct{}
	wait  sync.WaitGroup

	mu      sync.Mutex
	last    uint64
	pending map[uint64]*pending[R]
	reason  error // why the connection was lost
}

type pending[R Response] struct {
	received []R
	complete chan struct{}
}

// NewClient returns a client that owns a connection. The errors of its methods wrap lost once the
// connection is lost. event is called for each event and must not block, because answers are not
// received meanwhile.
func NewClient[R Response](conn *Conn, lost error, event func(R)) *Client[R] {
	c := &Client[R]{conn: conn, lost: lost, event: event, done: make(chan struct{}),
		pending: map[uint64]*pending[R]{}}
	c.wait.Go(c.receive)
	return c
}

// Close closes the connection. Calls in progress fail.
func (c *Client[R]) Close() {
	c.end(c.lost)
	c.wait.Wait()
}

// Done returns a channel that is closed when the connection is lost or closed.
func (c *Client[R]) Done() <-chan struct{} { return c.done }

// Call sends the request that the function returns for a request number, and waits for the answer:
// one or more messages. It returns at the end of ctx. Sending takes at most PeerTimeout, or until
// the deadline of ctx.
func (c *Client[R]) Call(ctx context.Context, request func(number uint64) any) ([]R, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	number, answer, err := c.register()
	if err != nil {
		return nil, err
	}
	defer c.forget(number)
	frame, err := encode(request(number))
	if err != nil {
		return nil, err
	}
	if err := c.conn.reserve(ctx); err != nil {
		return nil, err
	}
	if err := c.conn.write(ctx, frame); err != nil {
		c.end(fmt.Errorf("%w: %w", c.lost, err))
		return nil, c.err()
	}
	select {
	case <-answer.complete:
		return answer.received, nil
	case <-c.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case <-answer.complete: // the answer was complete before the connection ended
		return answer.received, nil
	default:
		return nil, c.err()
	}
}

func (c *Client[R]) register() (uint64, *pending[R], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return 0, nil, c.reason
	}
	c.last++
	answer := &pending[R]{complete: make(chan struct{})}
	c.pending[c.last] = answer
	return c.last, answer, nil
}

func (c *Client[R]) forget(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, number)
}

func (c *Client[R]) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// receive assigns messages to requests until the connection is lost.
func (c *Client[R]) receive() {
	for {
		var r R
		if err := c.conn.Receive(time.Time{}, &r); err != nil {
			c.end(fmt.Errorf("%w: %w", c.lost, err))
			return
		}
		number, more := r.RequestNumber()
		if number == 0 {
			c.event(r)
		} else if err := c.answer(number, r, more); err != nil {
			c.end(fmt.Errorf("%w: %w", c.lost, err))
			return
		}
	}
}

func (c *Client[R]) answer(number uint64, r R, more bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, found := c.pending[number]
	if !found {
		return nil // the caller no longer waits
	}
	if len(answer.received) == maxMessages {
		return errors.New("the answer to a request has too many messages")
	}
	answer.received = append(answer.received, r)
	if !more {
		delete(c.pending, number)
		close(answer.complete)
	}
	return nil
}

// end closes the connection for a reason. Only the first call has an effect.
func (c *Client[R]) end(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == nil {
		c.reason = reason
		_ = c.conn.Close()
		close(c.done)
	}
}
