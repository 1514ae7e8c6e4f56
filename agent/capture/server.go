package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"outrider.org/outrider/agent/accept"
	"outrider.org/outrider/agent/backoff"
	"outrider.org/outrider/agent/rpc"
	"outrider.org/outrider/agent/unixpeer"
)

const (
	maxConnections = 8
	queuedAnswers  = 16
	// earlierWait is how long an agent of an incompatible earlier version still counts as
	// connected: the upgrade is about to restart it. It is less than callTime.
	earlierWait = 2 * time.Second
)

// connection is one client of outrider-capture.
type connection struct {
	conn *rpc.Conn
	out  chan response
}

// send queues a response. It disconnects a client that does not read.
func (c *connection) send(r response) {
	select {
	case c.out <- r:
	default:
		_ = c.conn.Close()
	}
}

// accept accepts clients until the listener is closed. Only the users of Users and root may
// connect. Root always has a slot, so that it can stop outrider-capture.
func (h *helper) accept(ctx context.Context, listener *net.UnixListener, users []uint32) {
	slots := make(chan struct{}, maxConnections)
	failed := func(err error) { h.logf("accept an agent: %v", err) }
	for {
		socket, err := accept.NextConn(listener.AcceptUnix, failed)
		if err != nil {
			return
		}
		peer, err := unixpeer.OfConn(socket)
		if err == nil && !slices.Contains(users, peer.UID) {
			err = fmt.Errorf("user %d may not connect to outrider-capture", peer.UID)
		}
		if err != nil {
			h.logf("refused a connection: %v", err)
			_ = socket.Close()
			continue
		}
		client := &connection{rpc.NewConn(socket), make(chan response, queuedAnswers)}
		if peer.UID == 0 {
			go h.serve(ctx, client)
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = socket.Close()
			continue
		}
		go func() {
			defer func() { <-slots }()
			h.serve(ctx, client)
		}()
	}
}

func (h *helper) serve(ctx context.Context, c *connection) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = c.conn.Close() }()
	post := func(r request) bool {
		select {
		case h.calls <- call{r, c}:
			return true
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case r := <-c.out:
				if c.conn.Send(ctx, r) != nil {
					_ = c.conn.Close()
					return
				}
			}
		}
	}()
	if !post(request{}) {
		return
	}
	defer post(request{})
	for {
		var r request
		err := c.conn.Receive(time.Time{}, &r)
		if errors.Is(err, rpc.ErrUnframed) {
			_ = backoff.Sleep(ctx, earlierWait)
			_ = c.conn.SendUnframed(response{Number: 1, Error: "outrider-capture is of a later " +
				"version than the agent; restart the agent"})
		}
		if err != nil || r.Operation == "" || !post(r) {
			return
		}
	}
}
