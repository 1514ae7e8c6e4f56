package systemd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kind of a message: of some only the newest counts.
type kind int

const (
	stateKind  kind = iota // a change of state: each counts, in order
	statusKind             // a sentence alone
	aliveKind              // watchdog and extension
)

// message is one datagram.
type message struct {
	kind kind
	text string
}

const (
	retryEvery = 100 * time.Millisecond // a full socket is tried again
	mostKept   = 32                     // changes of state that wait for the socket; beyond that the oldest are dropped
)

// post sends a message, or keeps it if the socket does not take it now. The lock is held.
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

// keep appends a message. A sentence or a sign of life makes an older one obsolete that still waits behind the last change of
// state; ahead of it an older sentence may stand, which that change replaces.
func (n *Notifier) keep(m message) {
	if m.kind != stateKind {
		n.pending = slices.DeleteFunc(n.pending, func(old message) bool { return old.kind == m.kind })
	} else {
		n.pending = slices.DeleteFunc(n.pending, func(old message) bool { return old.kind == statusKind })
	}
	if len(n.pending) >= mostKept {
		n.pending = slices.Delete(n.pending, 0, 1)
	}
	n.pending = append(n.pending, m)
}

// flush sends what is pending as far as the socket takes it. The lock is held.
func (n *Notifier) flush() {
	for len(n.pending) > 0 && n.socket >= 0 {
		err := unix.Sendto(n.socket, []byte(n.pending[0].text), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: n.address})
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil:
			n.refused = nil
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS):
			return // full: nobody waits for it
		case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT):
			n.complain(err) // the manager is being replaced, or gone for good
			return
		default:
			n.complain(err)
		}
		n.pending = slices.Delete(n.pending, 0, 1)
	}
}

// complain logs why systemd cannot be told, once for each reason.
func (n *Notifier) complain(err error) {
	if errors.Is(err, n.refused) {
		return
	}
	n.refused = err
	n.log.Warn("systemd was not told how the agent stands", "socket", n.address, "error", err)
}

// again sends what waits, until ctx ends.
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

// waits tries to send what is pending, and is whether something still is.
func (n *Notifier) waits() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.flush()
	return len(n.pending) > 0
}

// Close sends what is still pending, as long as ctx lasts, and closes the socket. Nothing is told afterwards.
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
