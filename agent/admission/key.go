package admission

import (
	"net"
	"net/netip"

	"outrider.org/outrider/agent/sockdiag"
)

// Key is who shares a limit: a user of this host or, if Network is valid, a network of other hosts.
type Key struct {
	UID     uint32
	Network netip.Prefix
}

// UnknownUser is the UID of local connections whose user the kernel does not tell. It is no user's:
// chown(2) means "no change" by it.
const UnknownUser = ^uint32(0)

// User returns the key of a user of this host.
func User(uid uint32) Key { return Key{UID: uid} }

// Local reports whether the key is that of a user of this host.
func (k Key) Local() bool { return !k.Network.IsValid() }

// KeyOfTCP returns the key of a TCP connection's other end. Where that is on this host the kernel
// says whose socket it is: the address says nothing, a user may use all of 127.0.0.0/8. Other hosts
// share a key by address, or by /64 with IPv6, all of which a host may use.
func KeyOfTCP(c net.Conn) Key {
	local, remote := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	if uid, err := sockdiag.User(remote, local); err == nil {
		return User(uid)
	}
	if remote.Addr().IsLoopback() || remote.Addr() == local.Addr() {
		return User(UnknownUser)
	}
	bits := 32
	if remote.Addr().Is6() {
		bits = 64
	}
	network, err := remote.Addr().WithZone("").Prefix(bits)
	if err != nil { // no address at all
		return User(UnknownUser)
	}
	return Key{Network: network}
}

func addrPort(address net.Addr) netip.AddrPort {
	tcp, ok := address.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	found := tcp.AddrPort()
	return netip.AddrPortFrom(found.Addr().Unmap(), found.Port())
}
