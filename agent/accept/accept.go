// Package accept accepts connections from a listener without giving up while the process or the host
// is out of descriptors or memory.
package accept

import (
	"errors"
	"net"
	"time"
)

// Pause is the time between two attempts.
const Pause = 100 * time.Millisecond

// Next calls accept until it returns a connection or the listener is closed, which is the only error
// (net.ErrClosed). After another error it calls failed, if that is not nil, and pauses. The errors
// repeat: failed must limit what it reports.
func Next[C any](accept func() (C, error), failed func(error)) (C, error) {
	for {
		connection, err := accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return connection, err
		}
		if failed != nil {
			failed(err)
		}
		time.Sleep(Pause)
	}
}

// Listener is a net.Listener whose Accept is Next, for servers that retry at once or end at the first
// error.
type Listener struct {
	net.Listener
	Failed func(error) // may be nil
}

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) { return Next(l.Listener.Accept, l.Failed) }
