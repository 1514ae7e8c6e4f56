package capture

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"outrider.org/outrider/agent/accept"
	"outrider.org/outrider/agent/unixpeer"
)

const (
	maxConnections = 8
	queuedAnswers  = 16
	writeWait      = 2 * time.Second
)

// connection is one client of the helper.
type connection struct {
	socket *net.UnixConn
	out    chan response
}

// send queues a response. A client that reads nothing is disconnected.
func (c *connection) send(r response) {
	select {
	case c.out <- r:
	default:
		_ = c.socket.Close()
	}
}

// accept serves clients until the listener is closed. Only users may connect. Root always has a
// place, to stop the helper.
func (h *helper) accept(ctx context.Context, listener *net.UnixListener, users []uint32) {
	places := make(chan struct{}, maxConnections)
	failed := func(err error) { h.logf("accept an agent: %v", err) }
	for {
		socket, err := accept.Next(listener.AcceptUnix, failed)
		if err != nil {
			return
		}
		peer, err := unixpeer.Of(socket)
		if err == nil && !slices.Contains(users, peer.UID) {
			err = fmt.Errorf("user %d may not connect", peer.UID)
		}
		if err != nil {
			h.logf("refused a connection: %v", err)
			_ = socket.Close()
			continue
		}
		client := &connection{socket, make(chan response, queuedAnswers)}
		if peer.UID == 0 {
			go h.serve(ctx, client)
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			_ = socket.Close()
			continue
		}
		go func() {
			defer func() { <-places }()
			h.serve(ctx, client)
		}()
	}
}

func (h *helper) serve(ctx context.Context, c *connection) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = c.socket.Close() }()
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
				_ = c.socket.SetWriteDeadline(time.Now().Add(writeWait))
				if writeLine(c.socket, r) != nil {
					_ = c.socket.Close()
					return
				}
			}
		}
	}()
	if !post(request{}) {
		return
	}
	lines := newLineReader(c.socket)
	for {
		var r request
		if readLine(lines, &r) != nil {
			post(request{})
			return
		}
		if r.Operation == "" || !post(r) {
			post(request{})
			return
		}
	}
}
