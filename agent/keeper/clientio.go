package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// writeWait bounds a write to a keeper that reads nothing: it is stopped, or waits for a disk. The
// connection ends with it.
const writeWait = 5 * time.Second

// ask sends a request and waits for its answer.
func (c *Client) ask(ctx context.Context, r request) (response, error) {
	answers, number, err := c.send(ctx, r)
	if err != nil {
		return response{}, err
	}
	return c.await(ctx, r.Operation, number, answers)
}

// answersQueued is more than the frames of any answer (a list has at most MaxExits and a few living
// processes), so that a slow caller does not delay the others.
const answersQueued = 4 * MaxExits

// list sends a request whose answer has several frames.
func (c *Client) list(ctx context.Context, operation string) ([]Process, error) {
	answers, number, err := c.send(ctx, request{Operation: operation})
	if err != nil {
		return nil, err
	}
	var processes []Process
	for {
		r, err := c.await(ctx, operation, number, answers)
		if err != nil {
			return nil, err
		}
		if r.Process != nil {
			processes = append(processes, *r.Process)
		}
		if !r.More {
			return processes, nil
		}
	}
}

func (c *Client) send(ctx context.Context, r request) (<-chan response, uint64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, fmt.Errorf("ask the keeper to %s: %w", r.Operation, err)
	}
	answers := make(chan response, answersQueued)
	c.mu.Lock()
	if c.reason != nil {
		defer c.mu.Unlock()
		return nil, 0, fmt.Errorf("ask the keeper to %s: %w", r.Operation, c.reason)
	}
	c.next++
	r.Number = c.next
	c.asked[r.Number] = answers
	c.mu.Unlock()
	c.writing.Lock()
	err := c.socket.SetWriteDeadline(time.Now().Add(writeWait))
	if err == nil {
		err = writeFrame(c.socket, r)
	}
	c.writing.Unlock()
	if errors.Is(err, os.ErrDeadlineExceeded) { // a frame may have been cut
		c.lost(fmt.Errorf("%w: the keeper reads nothing", ErrClosed))
	}
	if err != nil {
		c.forgetRequest(r.Number)
		if reason := c.lostReason(); reason != nil {
			err = reason
		}
		return nil, 0, fmt.Errorf("ask the keeper to %s: %w", r.Operation, err)
	}
	return answers, r.Number, nil
}

func (c *Client) await(ctx context.Context, operation string, number uint64,
	answers <-chan response) (response, error) {
	select {
	case r, ok := <-answers:
		if !ok {
			return response{}, fmt.Errorf("ask the keeper to %s: %w", operation, c.lostReason())
		}
		if r.Error != nil {
			return r, r.Error
		}
		return r, nil
	case <-ctx.Done():
		c.forgetRequest(number)
		// The keeper need not finish it.
		if operation == operationRun || operation == operationMeasure {
			_, _, _ = c.send(context.WithoutCancel(ctx), request{Operation: operationCancel,
				Cancel: number})
		}
		return response{}, fmt.Errorf("ask the keeper to %s: %w", operation, ctx.Err())
	}
}

func (c *Client) forgetRequest(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.asked, number)
}

func (c *Client) lostReason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// read receives answers and events until the connection is lost.
func (c *Client) read() {
	for {
		var r response
		if err := readFrame(c.socket, &r); err != nil {
			c.lost(errors.Join(ErrClosed, err))
			return
		}
		if r.Event != nil {
			c.events.add(*r.Event)
		}
		if r.Number != 0 {
			c.answered(r)
		}
	}
}

func (c *Client) answered(r response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers, waited := c.asked[r.Number]
	if !waited {
		return
	}
	if !r.More {
		delete(c.asked, r.Number)
	}
	select {
	case answers <- r:
	default: // the keeper sends more frames than it may
	}
}

// lost ends the connection. Only the first call has an effect.
func (c *Client) lost(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return
	}
	c.reason = reason
	_ = c.socket.Close()
	for number, answers := range c.asked {
		delete(c.asked, number)
		close(answers)
	}
	close(c.done)
}

// deliver passes events to the reader of Events.
func (c *Client) deliver() {
	defer close(c.out)
	for {
		select {
		case <-c.events.lines.waiting:
		case <-c.done:
			return
		}
		for _, event := range c.events.take() {
			select {
			case c.out <- event:
			case <-c.done:
				return
			}
		}
	}
}
