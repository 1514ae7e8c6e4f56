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

// Peer is the client of a stream.
type Peer struct {
	Address string // of the Unix socket, or host:port
	PID     int32  // 0 where the connection is not local
	UID     uint32
	GID     uint32

	TLS bool // the connection uses TLS
	// Certificate is the client's, verified by the TLS configuration of the server; nil: none.
	Certificate *x509.Certificate
	// Token is the bearer token of the stream's metadata, not verified; "": none. Only Options.Admit
	// and Options.Reserved see it: streams do not retain it.
	Token string
	// Identity is the SPIFFE ID that Options.Admit found; "": none.
	Identity string
	// connection is that of a listener of LimitTCP; nil: of another.
	connection *admission.Conn
}

// withoutToken returns the peer without its token, which is a secret.
func (p Peer) withoutToken() Peer {
	p.Token = ""
	return p
}

// connection returns the peer as its remote address, which gRPC passes on.
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

// PeerOf returns the client with the remote address of a connection that a listener of this package
// accepted.
func PeerOf(address net.Addr) Peer {
	if p, ok := address.(peerAddress); ok {
		return Peer(p)
	}
	return Peer{Address: address.String()}
}

// PeerFrom returns the client of a gRPC call of the server.
func PeerFrom(ctx context.Context) Peer {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}
	}
	p := PeerOf(from.Addr)
	if info, ok := from.AuthInfo.(credentials.TLSInfo); ok {
		p.TLS = true
		if chains := info.State.VerifiedChains; len(chains) > 0 {
			p.Certificate = chains[0][0]
		}
	}
	p.Token = bearer(metadata.ValueFromIncomingContext(ctx, "authorization"))
	return p
}

// bearer returns the token of the first authorization header that has one.
func bearer(headers []string) string {
	const scheme = "bearer "
	for _, header := range headers {
		if len(header) > len(scheme) && strings.EqualFold(header[:len(scheme)], scheme) {
			return strings.TrimSpace(header[len(scheme):])
		}
	}
	return ""
}
