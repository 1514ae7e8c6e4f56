package admission

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Options of a Listener.
type Options struct {
	// Admit returns the key of a connection and the pool that it belongs to.
	Admit func(net.Conn) (*Pool, Key)
	// Busy connections are never evicted, however long they are silent.
	Busy bool
	// Refusal is sent to connections that are refused. It must fit into the buffer of a fresh
	// socket.
	Refusal []byte
}

// Listener accepts connections that their pool admits, and closes others. It never waits for a
// place: connections that wait in the kernel's queue would be those of everybody. A connection is
// idle until SetBusy, or ConnState, says otherwise.
type Listener struct {
	net.Listener
	options Options
}

// Listen returns a listener that admits the connections of another one.
func Listen(inner net.Listener, options Options) *Listener { return &Listener{inner, options} }

// Conn is a connection that has a place.
type Conn struct {
	net.Conn
	Key   Key
	place *Place
}

// Accept implements net.Listener. The connection is a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		pool, key := l.options.Admit(accepted)
		place, ok := pool.Enter(key, func() { _ = accepted.Close() })
		if ok {
			if !l.options.Busy {
				place.SetIdle()
			}
			return &Conn{Conn: accepted, Key: key, place: place}, nil
		}
		_ = accepted.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = accepted.Write(l.options.Refusal)
		_ = accepted.Close()
	}
}

// Close closes the connection and leaves its place.
func (c *Conn) Close() error {
	c.place.Leave()
	return c.Conn.Close()
}

// SetBusy keeps the connection from being evicted. It reports false if it was evicted already.
func (c *Conn) SetBusy() bool { return c.place.SetBusy() }

// ConnState is for http.Server: a connection is busy from when the header of a request has been
// read until its answer has been sent. So one that sends its header slowly is idle, too.
func ConnState(c net.Conn, state http.ConnState) {
	admitted, ok := c.(*Conn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive:
		admitted.place.SetBusy()
	case http.StateIdle:
		admitted.place.SetIdle()
	}
}

type contextKey struct{}

// ConnContext is for http.Server: FromContext finds the connection of a request.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// FromContext returns the connection of a request, nil if it did not come through a Listener.
func FromContext(ctx context.Context) *Conn {
	c, _ := ctx.Value(contextKey{}).(*Conn)
	return c
}

// KeyFrom returns the key of a request's connection. Without one it is that of an unknown user.
func KeyFrom(ctx context.Context) Key {
	if c := FromContext(ctx); c != nil {
		return c.Key
	}
	return User(UnknownUser)
}

// Handler aborts requests whose connection was evicted while they were read: the caller would not
// learn how they ended.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := FromContext(r.Context()); c != nil && !c.place.Held() {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}
