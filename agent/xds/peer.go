package xds

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"outrider.org/outrider/agent/admission"
)

// Peer describes the client of a stream.
type Peer struct {
	Address string // path of the Unix socket, or host:port
	PID     int32  // process ID of the client; 0 if it is on another host
	UID     uint32
	GID     uint32

	TLS bool // the connection uses TLS
	// Certificate is the client certificate, verified according to the server's TLS configuration;
	// nil: none.
	Certificate *x509.Certificate
	// Token is the bearer token that the client sent, not verified yet; "": none. Only
	// Options.Admit and Options.HasReservedStreams receive it. It is not stored with the stream.
	Token string
	// UserAgent is the program name that the client sends, such as "outriderd/1.2.3
	// grpc-go/1.79.3", cut to 128 bytes; "": none.
	UserAgent string
	// Identity is the SPIFFE ID that Options.Admit has determined; "": none.
	Identity string
	// connection is not nil if a listener of LimitConnections accepted the connection. It then
	// counts against the limits of that listener.
	connection *admission.Conn
}

const maxUserAgent = 128 // bytes

// ClientKey returns the key by which limits count a client. A client that is not connected through
// LimitConnections counts as root.
func (p Peer) ClientKey() admission.ClientKey {
	if p.connection == nil {
		return admission.ClientKey{}
	}
	return p.connection.Key
}

// withoutToken returns a copy of the peer without its token, which must be neither logged nor
// stored.
func (p Peer) withoutToken() Peer {
	p.Token = ""
	return p
}

// connection is a net.Conn whose remote address contains the Peer. gRPC passes the remote address
// to the handlers of calls.
type connection struct {
	net.Conn
	peer Peer
}

// RemoteAddr implements net.Conn.
func (c connection) RemoteAddr() net.Addr { return peerAddress(c.peer) }

type peerAddress Peer

// Network implements net.Addr.
func (p peerAddress) Network() string {
	if p.connection != nil {
		return "tcp"
	}
	return "unix"
}

// String implements net.Addr.
func (p peerAddress) String() string {
	if p.connection != nil {
		return p.Address
	}
	return fmt.Sprintf("pid %d, uid %d", p.PID, p.UID)
}

// PeerOfAddress returns the client of a connection that a listener of this package accepted.
// address is the connection's remote address.
func PeerOfAddress(address net.Addr) Peer {
	if p, ok := address.(peerAddress); ok {
		return Peer(p)
	}
	return Peer{Address: address.String()}
}

// PeerFromContext returns the client of a gRPC call from the call's context.
func PeerFromContext(ctx context.Context) Peer {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}
	}
	p := PeerOfAddress(from.Addr)
	if info, ok := from.AuthInfo.(credentials.TLSInfo); ok {
		p.TLS = true
		if chains := info.State.VerifiedChains; len(chains) > 0 {
			p.Certificate = chains[0][0]
		}
	}
	if agent := metadata.ValueFromIncomingContext(ctx, "user-agent"); len(agent) > 0 {
		p.UserAgent = strings.Clone(agent[0][:min(len(agent[0]), maxUserAgent)])
	}
	p.Token = bearer(metadata.ValueFromIncomingContext(ctx, "authorization"))
	return p
}

// bearer returns the first bearer token in the values of authorization headers; "" if there is
// none.
func bearer(headers []string) string {
	const scheme = "bearer "
	for _, header := range headers {
		if len(header) > len(scheme) && strings.EqualFold(header[:len(scheme)], scheme) {
			return strings.TrimSpace(header[len(scheme):])
		}
	}
	return ""
}
