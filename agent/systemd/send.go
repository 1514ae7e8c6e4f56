package systemd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kind determines which pending messages a new one replaces.
type kind int

const (
	stateKind  kind = iota // change of state; all are sent, in order
	statusKind             // status sentence only
	aliveKind              // watchdog and timeout extension
)

// message is one datagram.
type message struct {
	kind kind
	text string
}

const (
	retryEvery = 100 * time.Millisecond // interval of retries while the socket is full
	// maxPending is the maximum number of pending messages; beyond it the oldest is dropped.
	maxPending = 32
)

// post sends a message, or queues it if the socket is full. The caller holds mu.
func (n *Notifier) post(kind kind, lines ...string) {
	if n.socket < 0 {
		return
	}
	n.keep(message{kind, strings.Join(lines, "\n")})
	n.flush()
	if len(n.pending) > 0 {
		select {
		case n.retry <- struct{}{}:
		default:
		}
	}
}

// keep queues a message. A status or alive message replaces an older one of its kind; a change of
// state replaces an older status.
func (n *Notifier) keep(m message) {
	if m.kind != stateKind {
		n.pending = slices.DeleteFunc(n.pending,
			func(old message) bool { return old.kind == m.kind })
	} else {
		n.pending = slices.DeleteFunc(n.pending,
			func(old message) bool { return old.kind == statusKind })
	}
	if len(n.pending) >= maxPending {
		n.pending = slices.Delete(n.pending, 0, 1)
	}
	n.pending = append(n.pending, m)
}

// flush sends pending messages until the socket is full. The caller holds mu.
func (n *Notifier) flush() {
	for len(n.pending) > 0 && n.socket >= 0 {
		err := unix.Sendto(n.socket, []byte(n.pending[0].text), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT,
			&unix.SockaddrUnix{Name: n.address})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil:
			n.refused = nil
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS):
			return // full: retry later instead of blocking
		case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT):
			n.complain(err) // the manager is restarting or gone
			return
		default:
			n.complain(err)
		}
		n.pending = slices.Delete(n.pending, 0, 1)
	}
}

// complain logs a failure to notify systemd, once per error.
func (n *Notifier) complain(err error) {
	if errors.Is(err, n.refused) {
		return
	}
	n.refused = err
	n.log.Warn("cannot notify systemd of the agent's state", "socket", n.address, "error", err)
}

// again retries pending messages until ctx ends.
func (n *Notifier) again(ctx context.Context) {
	for {
		select {
		case <-n.retry:
		case <-ctx.Done():
			return
		}
		for n.waits() {
			timer := time.NewTimer(retryEvery)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
	}
}

// waits tries to send pending messages and reports whether some remain.
func (n *Notifier) waits() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.flush()
	return len(n.pending) > 0
}

// Close sends pending messages until ctx ends, and closes the socket. Later messages are dropped.
func (n *Notifier) Close(ctx context.Context) {
	for n.waits() && ctx.Err() == nil {
		timer := time.NewTimer(retryEvery)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.socket >= 0 {
		_ = unix.Close(n.socket)
		n.socket = -1
	}
	n.pending = nil
}
