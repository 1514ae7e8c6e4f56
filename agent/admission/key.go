package admission

import (
	"fmt"
	"net"
	"net/netip"

	"outrider.org/outrider/agent/sockdiag"
)

// ClientKey identifies the clients that share a limit: those of a user of this host (UID) or, if
// Network is valid, those of a remote network.
type ClientKey struct {
	UID     uint32
	Network netip.Prefix
}

// UnknownUser is the UID of local connections whose user the kernel does not report. No user has
// it: chown(2) reserves it.
const UnknownUser = ^uint32(0)

// KeyOfUser returns the key of a user of this host.
func KeyOfUser(uid uint32) ClientKey { return ClientKey{UID: uid} }

// String returns the remote network, or the user as "user UID".
func (k ClientKey) String() string {
	if k.Local() {
		return fmt.Sprintf("user %d", k.UID)
	}
	return k.Network.String()
}

// Local reports whether the key is a user of this host.
func (k ClientKey) Local() bool { return !k.Network.IsValid() }

// AdmitTCP returns an Options.Admit with one pool for clients on this host and one for remote
// clients.
func AdmitTCP(local, remote *Pool) func(net.Conn) (*Pool, ClientKey) {
	return func(c net.Conn) (*Pool, ClientKey) {
		key := KeyOfTCP(c)
		if key.Local() {
			return local, key
		}
		return remote, key
	}
}

// KeyOfTCP returns the key of a TCP connection's peer. For a local peer it is the owner of the
// peer's socket: the address does not identify the user, because any user may use all of
// 127.0.0.0/8. For a remote peer it is the IPv4 address, or the /64 of the IPv6 address, because a
// host may use all addresses of its /64.
func KeyOfTCP(c net.Conn) ClientKey {
	local, remote := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	if uid, err := sockdiag.CreatorUID(remote, local); err == nil {
		return KeyOfUser(uid)
	}
	if remote.Addr().IsLoopback() || remote.Addr() == local.Addr() {
		return KeyOfUser(UnknownUser)
	}
	bits := 32
	if remote.Addr().Is6() {
		bits = 64
	}
	network, err := remote.Addr().WithZone("").Prefix(bits)
	if err != nil { // not an IP address
		return KeyOfUser(UnknownUser)
	}
	return ClientKey{Network: network}
}

func addrPort(address net.Addr) netip.AddrPort {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	found := tcp.AddrPort()
	return netip.AddrPortFrom(found.Addr().Unmap(), found.Port())
}
