package main

import (
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/xds"
)

const (
	// handshakesPerClient is the maximum number of concurrent TLS handshakes of one client: an IPv4
	// address, an IPv6 /64 network or a user of this host. Further handshakes wait. The limit is
	// high, because many hosts may share an address.
	handshakesPerClient = 64
	// handshakeTimeout bounds the wait for the client's other handshakes, and then the handshake.
	handshakeTimeout = 30 * time.Second
)

var errHandshakes = errors.New("too many concurrent TLS handshakes from this address")

// handshakes are transport credentials that limit the concurrent handshakes of each client. A
// client with slow or many connections delays only its own handshakes.
type handshakes struct {
	credentials.TransportCredentials
	limit   int
	timeout time.Duration

	mu    sync.Mutex
	turns map[admission.ClientKey]*turns
}

// turns limits the concurrent handshakes of one client.
type turns struct {
	slots chan struct{}
	users int // number of running and waiting handshakes
}

func limitHandshakes(c credentials.TransportCredentials, limit int,
	timeout time.Duration) *handshakes {
	return &handshakes{TransportCredentials: c, limit: limit, timeout: timeout,
		turns: map[admission.ClientKey]*turns{}}
}

// ServerHandshake implements credentials.TransportCredentials.
func (h *handshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	key := xds.PeerOfAddress(c.RemoteAddr()).ClientKey()
	t := h.enter(key)
	defer h.leave(key)
	timer := time.NewTimer(h.timeout)
	defer timer.Stop()
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-timer.C:
		return nil, nil, errHandshakes
	}
	if err := c.SetDeadline(time.Now().Add(h.timeout)); err != nil {
		return nil, nil, err
	}
	return h.TransportCredentials.ServerHandshake(c)
}

func (h *handshakes) enter(key admission.ClientKey) *turns {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.turns[key]
	if t == nil {
		t = &turns{slots: make(chan struct{}, h.limit)}
		h.turns[key] = t
	}
	t.users++
	return t
}

func (h *handshakes) leave(key admission.ClientKey) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.turns[key]; t.users > 1 {
		t.users--
	} else {
		delete(h.turns, key)
	}
}

// Clone implements credentials.TransportCredentials.
func (h *handshakes) Clone() credentials.TransportCredentials {
	return limitHandshakes(h.TransportCredentials.Clone(), h.limit, h.timeout)
}
