// Package accept accepts connections from a listener and retries after errors, such as a lack of
// file descriptors or memory.
package accept

import (
	"errors"
	"net"
	"time"
)

// retryPause is the pause after a failed accept.
const retryPause = 100 * time.Millisecond

// NextConn calls accept until accept returns a connection or, because the listener is closed,
// net.ErrClosed. After any other error, NextConn calls failed (unless nil), pauses and retries. An
// error may repeat without end, so failed must limit what it reports.
func NextConn[C any](accept func() (C, error), failed func(error)) (C, error) {
	for {
		connection, err := accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return connection, err
		}
		if failed != nil {
			failed(err)
		}
		time.Sleep(retryPause)
	}
}

// Listener is a net.Listener whose Accept retries after errors as NextConn does. It is for servers
// that would retry without a pause, or end at the first error.
type Listener struct {
	net.Listener
	OnError func(error) // may be nil
}

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) { return NextConn(l.Listener.Accept, l.OnError) }
