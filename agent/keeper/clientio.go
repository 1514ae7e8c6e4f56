package keeper

import (
	"context"
	"errors"
	"fmt"
)

// call sends a request and waits for its answer.
func (c *Client) call(ctx context.Context, r request) (response, error) {
	answers, err := c.callAll(ctx, r)
	if err != nil {
		return response{}, err
	}
	return answers[0], nil
}

// list sends a request whose answer has several messages.
func (c *Client) list(ctx context.Context, operation string) ([]Process, error) {
	answers, err := c.callAll(ctx, request{Operation: operation})
	if err != nil {
		return nil, err
	}
	var processes []Process
	for _, r := range answers {
		if r.Process != nil {
			processes = append(processes, *r.Process)
		}
	}
	return processes, nil
}

// callAll returns the messages that answer a request, or the keeper's refusal as an error.
func (c *Client) callAll(ctx context.Context, r request) ([]response, error) {
	number := uint64(0)
	answers, err := c.calls.Call(ctx, func(n uint64) any {
		number, r.Number = n, n
		return r
	})
	if err != nil {
		stoppable := r.Operation == operationRun || r.Operation == operationMeasure
		if stoppable && number != 0 && errors.Is(err, ctx.Err()) {
			c.wait.Go(func() { c.stop(number) })
		}
		return nil, fmt.Errorf("send the request %s to the keeper: %w", r.Operation, err)
	}
	for _, answer := range answers {
		if answer.Error != nil {
			return nil, answer.Error
		}
	}
	return answers, nil
}

// stop makes the keeper cancel a request whose caller no longer waits for the answer.
func (c *Client) stop(number uint64) {
	_, _ = c.call(context.Background(), request{Operation: operationCancel, Cancel: number})
}

// deliver passes events to the reader of Events.
func (c *Client) deliver() {
	defer close(c.out)
	for {
		select {
		case <-c.events.lines.waiting:
		case <-c.calls.Done():
			return
		}
		for _, event := range c.events.take() {
			select {
			case c.out <- event:
			case <-c.calls.Done():
				return
			}
		}
	}
}
