package admission

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Options configure a Listener.
type Options struct {
	// Admit returns the pool and the key of a connection.
	Admit func(net.Conn) (*Pool, ClientKey)
	// NeverEvict marks all connections as busy from the start, so that they are never evicted.
	NeverEvict bool
	// RefusalResponse is sent to refused connections. It must fit into the send buffer of a new
	// socket.
	RefusalResponse []byte
}

// Listener accepts connections that their pool admits, and closes the rest. It does not wait until
// the pool has a free slot: waiting connections would fill the kernel's backlog, which all clients
// share. A connection is idle until SetBusy or ConnState marks it as busy.
type Listener struct {
	net.Listener
	options Options
}

// NewListener returns a Listener that accepts from inner.
func NewListener(inner net.Listener, options Options) *Listener { return &Listener{inner, options} }

// Conn is an admitted connection.
type Conn struct {
	net.Conn
	Key  ClientKey
	slot *Slot
}

// Accept implements net.Listener. It returns a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		pool, key := l.options.Admit(accepted)
		slot, ok := pool.Acquire(key, func() { _ = accepted.Close() })
		if ok {
			if !l.options.NeverEvict {
				slot.SetIdle()
			}
			return &Conn{Conn: accepted, Key: key, slot: slot}, nil
		}
		_ = accepted.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = accepted.Write(l.options.RefusalResponse)
		_ = accepted.Close()
	}
}

// Close closes the connection and releases its slot.
func (c *Conn) Close() error {
	c.slot.Release()
	return c.Conn.Close()
}

// SetBusy prevents eviction of the connection. It returns false if the connection is already
// evicted.
func (c *Conn) SetBusy() bool { return c.slot.setBusy() }

// ConnState is for http.Server.ConnState. A connection is busy from the end of a request's header
// until the response is sent; a connection that sends its header slowly is idle.
func ConnState(c net.Conn, state http.ConnState) {
	admitted, ok := c.(*Conn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive:
		admitted.slot.setBusy()
	case http.StateIdle:
		admitted.slot.SetIdle()
	}
}

type contextKey struct{}

// ConnContext is for http.Server.ConnContext. It makes the connection available to ConnFromContext.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// ConnFromContext returns the connection of a request, or nil if it was not accepted by a Listener.
func ConnFromContext(ctx context.Context) *Conn {
	c, _ := ctx.Value(contextKey{}).(*Conn)
	return c
}

// KeyFromContext returns the key of a request's connection, or the key of UnknownUser if the
// context contains no connection.
func KeyFromContext(ctx context.Context) ClientKey {
	if c := ConnFromContext(ctx); c != nil {
		return c.Key
	}
	return KeyOfUser(UnknownUser)
}

// abortEvicted wraps a handler. It aborts requests whose connection was evicted while the request
// was read, because the client could not receive the response.
func abortEvicted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c := ConnFromContext(r.Context()); c != nil && !c.slot.isHeld() {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}
