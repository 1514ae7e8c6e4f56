package capture

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// acceptProbe is a marked connection of outrider-capture to a port of Envoy, which shows whether
// Envoy accepts connections. The kernel completes the handshake itself; only when Envoy accepts the
// connection does the socket at Envoy's end get an inode.
type acceptProbe struct {
	fd          int
	local, peer netip.AddrPort
}

type probeState int

const (
	probeWaits    probeState = iota
	probeAccepted            // accepted, or closed by Envoy or because nobody listens
	probeLost                // unknown, for example because a local firewall drops the connection
)

// newProbe starts to connect to a port of this host.
func newProbe(families AddressFamilies, port uint16) (*acceptProbe, error) {
	domain, address := unix.AF_INET, netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if !families.IPv4 {
		domain, address = unix.AF_INET6, netip.IPv6Loopback()
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	p := &acceptProbe{fd: fd, peer: netip.AddrPortFrom(address, port)}
	if err := p.connect(); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *acceptProbe) connect() error {
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_MARK, probeMark); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	port := int(p.peer.Port())
	var peer unix.Sockaddr
	if address := p.peer.Addr(); address.Is4() {
		peer = &unix.SockaddrInet4{Port: port, Addr: address.As4()}
	} else {
		peer = &unix.SockaddrInet6{Port: port, Addr: address.As16()}
	}
	if err := unix.Connect(p.fd, peer); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return os.NewSyscallError("connect", err)
	}
	local, err := unix.Getsockname(p.fd)
	switch local := local.(type) {
	case *unix.SockaddrInet4:
		p.local = netip.AddrPortFrom(p.peer.Addr(), uint16(local.Port))
	case *unix.SockaddrInet6:
		p.local = netip.AddrPortFrom(p.peer.Addr(), uint16(local.Port))
	}
	return os.NewSyscallError("getsockname", err)
}

// state examines both ends of the connection. An unanswered SYN counts as waiting if othersWait,
// because a listener with a full queue drops SYNs; otherwise the probe counts as lost.
func (p *acceptProbe) state(othersWait bool) probeState {
	own, err := unix.GetsockoptTCPInfo(p.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch {
	case err != nil:
		return probeLost
	case own.State == unix.BPF_TCP_SYN_SENT && othersWait:
		return probeWaits
	case own.State == unix.BPF_TCP_SYN_SENT:
		return probeLost
	case own.State != unix.BPF_TCP_ESTABLISHED:
		return probeAccepted
	}
	switch end, err := sockdiag.FindTCP(p.peer, p.local); {
	case err != nil:
		return probeLost
	case end.State == sockdiag.SynReceived, end.State == sockdiag.Established && end.Inode == 0:
		return probeWaits
	}
	return probeAccepted
}

func (p *acceptProbe) close() { _ = unix.Close(p.fd) }
