package api

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// Limits of connections at a time. Everybody may read, so everybody may try to use the agent up: one user's connections
// leave those of all others alone, and unprivileged ones never take the place of root's. Within them a connection that asks
// nothing is closed for one that comes.
const (
	connectionsPerUser      = 16
	connectionsUnprivileged = 128
	connectionsPrivileged   = 64
)

// places are the connections that there are.
type places struct {
	mu    sync.Mutex
	taken map[*connection]struct{}
}

func newPlaces() *places { return &places{taken: map[*connection]struct{}{}} }

// connection is a connection with its peer.
type connection struct {
	*net.UnixConn
	peer       Peer
	privileged bool
	places     *places
	idle       time.Time // since then no request has been read whole; zero: one is answered. Guarded by places.mu
}

// admit gives a connection a place. Where there is none left, one that is idle loses its own: the one that has been so longest
// of the same user, or of all unprivileged ones, whichever limit is reached. False: all are busy.
func (p *places) admit(accepted *net.UnixConn, peer Peer, privileged bool) (*connection, bool) {
	c := &connection{UnixConn: accepted, peer: peer, privileged: privileged, places: p, idle: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	var class, own crowd // privileged or not as the new one; of these, those of the same user
	for other := range p.taken {
		if other.privileged == privileged {
			class.add(other)
			if other.peer.UID == peer.UID {
				own.add(other)
			}
		}
	}
	var loser *connection
	switch {
	case !privileged && own.size >= connectionsPerUser:
		loser = own.oldest
	case !privileged && class.size >= connectionsUnprivileged, privileged && class.size >= connectionsPrivileged:
		loser = class.oldest
	default:
		p.taken[c] = struct{}{}
		return c, true
	}
	if loser == nil {
		return nil, false
	}
	_ = loser.UnixConn.Close()
	delete(p.taken, loser)
	p.taken[c] = struct{}{}
	return c, true
}

// crowd is connections that share a limit.
type crowd struct {
	size   int
	oldest *connection // of those that are idle, nil if none is
}

func (c *crowd) add(other *connection) {
	c.size++
	if !other.idle.IsZero() && (c.oldest == nil || other.idle.Before(c.oldest.idle)) {
		c.oldest = other
	}
}

// holds is whether a connection still has its place.
func (p *places) holds(c *connection) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.taken[c]
	return ok
}

// Close closes and gives the place back.
func (c *connection) Close() error {
	c.places.mu.Lock()
	delete(c.places.taken, c)
	c.places.mu.Unlock()
	return c.UnixConn.Close()
}

// markIdle is http.Server's ConnState. A connection is active from when a request's header has been read, just before its
// handler, until its answer has been sent.
func markIdle(accepted net.Conn, state http.ConnState) {
	c, ok := accepted.(*connection)
	if !ok {
		return
	}
	c.places.mu.Lock()
	defer c.places.mu.Unlock()
	switch state {
	case http.StateActive:
		c.idle = time.Time{}
	case http.StateIdle:
		c.idle = time.Now()
	}
}
