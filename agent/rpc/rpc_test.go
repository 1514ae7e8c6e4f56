package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

type message struct {
	Number uint64
	More   bool
	Text   string
}

func (m message) RequestNumber() (uint64, bool) { return m.Number, m.More }

var errLost = errors.New("lost")

// newClient returns a client, a channel with the events that it receives, and its peer's end of the
// connection. The pipe between them has no buffer: a peer that does not read blocks the client, as
// a peer with a full socket buffer does.
func newClient(t *testing.T) (*Client[message], <-chan message, net.Conn) {
	near, far := net.Pipe()
	events := make(chan message, 10)
	c := NewClient(NewConn(near), errLost, func(m message) { events <- m })
	t.Cleanup(func() { _ = far.Close(); c.Close() })
	return c, events, far
}

func call(ctx context.Context, c *Client[message], text string) ([]message, error) {
	return c.Call(ctx, func(number uint64) any { return message{Number: number, Text: text} })
}

func TestClient_AssignsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, events, far := newClient(t)
		peer := NewConn(far)
		type result struct {
			messages []message
			err      error
		}
		results := make(chan result, 1)
		var requests [2]message
		for i := range requests {
			go func() {
				messages, err := call(t.Context(), c, "request")
				if i == 0 {
					results <- result{messages, err}
				}
			}()
			if err := peer.Receive(time.Time{}, &requests[i]); err != nil {
				t.Fatal(err)
			}
		}
		first := requests[0].Number
		for _, m := range []message{{Text: "event"}, {Number: 99}, {Number: requests[1].Number},
			{Number: first, More: true, Text: "one"}, {Number: first, Text: "two"}} {
			if err := peer.Send(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		if got := <-results; got.err != nil || len(got.messages) != 2 ||
			got.messages[0].Text != "one" || got.messages[1].Text != "two" {
			t.Errorf("%+v", got)
		}
		if got := <-events; got.Text != "event" {
			t.Errorf("%+v", got)
		}
	})
}

func TestClient_BoundsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, far := newClient(t)
		peer := NewConn(far)
		go func() {
			var request message
			err := peer.Receive(time.Time{}, &request)
			for err == nil {
				err = peer.Send(t.Context(), message{Number: request.Number, More: true})
			}
		}()
		if messages, err := call(t.Context(), c, "request"); !errors.Is(err, errLost) {
			t.Errorf("%d messages, %v", len(messages), err)
		}
		<-c.Done()
	})
}

// If the peer reads nothing, a call returns at the deadline of its context, or after PeerTimeout if
// that is earlier.
func TestCall_EndsAtDeadlineIfPeerReadsNothing(t *testing.T) {
	for name, test := range map[string]struct{ deadline, want time.Duration }{
		"with deadline": {time.Second, time.Second}, "without": {time.Hour, PeerTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _, _ := newClient(t)
				ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
				defer cancel()
				began := time.Now()
				go func() {
					_, err := call(ctx, c, "a second call")
					if err == nil || time.Since(began) != test.want {
						t.Errorf("second call: %v after %v", err, time.Since(began))
					}
				}()
				_, err := call(ctx, c, "request")
				if err == nil || time.Since(began) != test.want {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				<-c.Done()
				if _, err := call(t.Context(), c, "later"); !errors.Is(err, errLost) {
					t.Errorf("after the end: %v", err)
				}
			})
		})
	}
}

func TestCall_EndsAtDeadlineIfPeerDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, far := newClient(t)
		go func() { _, _ = io.Copy(io.Discard, far) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := call(ctx, c, "request"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if len(c.pending) != 0 {
			t.Errorf("%d pending", len(c.pending))
		}
		select {
		case <-c.Done():
			t.Error("a missing answer ended the connection")
		default:
		}
	})
}

func TestReceive_BoundsTheRestOfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		c, began := NewConn(near), time.Now()
		go func() {
			time.Sleep(time.Hour)
			_, _ = far.Write([]byte("\x00\x00\x00\x02{"))
		}()
		var m message
		err := c.Receive(time.Time{}, &m)
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Hour+PeerTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestReceive_EndsAtDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		began := time.Now()
		var m message
		err := NewConn(near).Receive(began.Add(time.Second), &m)
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
