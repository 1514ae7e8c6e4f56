package capture

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/sockdiag"
)

// Times of the check that Envoy serves. Together they bound how long a host waits for a dead Envoy:
// deadLimit + checkEvery for one that has exited, probeEvery + stallLimit + checkEvery for one that
// is stopped.
const (
	checkEvery = 200 * time.Millisecond
	checkFast  = 20 * time.Millisecond // while rules are in force without Envoy
	deadLimit  = time.Second
	probeEvery = 800 * time.Millisecond
	stallLimit = 800 * time.Millisecond
)

// envoyCheck determines whether Envoy accepts captured connections. It needs neither the agent nor
// Envoy's admin interface.
type envoyCheck struct {
	user   uint32
	queues map[uint32]acceptQueue // by inode of the listening socket
	probed time.Time
	gone   bool // nobody listens: Envoy has exited, and may be started again
}

// acceptQueue is the queue of a listener that has connections waiting.
type acceptQueue struct {
	length uint32
	since  time.Time // when it was last seen to get shorter
}

// look returns the families for which sockets of Envoy's user listen on both ports on all addresses
// and accept; if there are none, why.
func (c *envoyCheck) look(now time.Time) (Families, string) {
	sockets, err := sockdiag.Listening()
	if err != nil {
		return Families{}, err.Error()
	}
	families, reason := c.judge(now, sockets)
	if families.any() && len(c.queues) == 0 && now.Sub(c.probed) >= probeEvery {
		c.probed = now
		// A stopped process does not accept: the next look finds the connection in the queue.
		connect(families, OutboundPort)
	}
	return families, reason
}

// judge is look without its effects. A socket of another user voids the families that it accepts.
func (c *envoyCheck) judge(now time.Time, sockets []sockdiag.Socket) (Families, string) {
	listens := map[uint16]Families{}
	queues := map[uint32]acceptQueue{}
	var foreign Families
	stalled, stranger := "", ""
	c.gone = false
	for _, s := range sockets {
		port := s.Address.Port()
		if port != OutboundPort && port != InboundPort {
			continue
		}
		if s.UID != c.user {
			stranger = fmt.Sprintf("user %d listens on port %d, Envoy's user is %d", s.UID, port,
				c.user)
			foreign = foreign.or(accepts(s))
			continue
		}
		if s.Waiting > 0 {
			queue, known := c.queues[s.Inode]
			if !known || s.Waiting < queue.length {
				queue.since = now
			}
			queue.length = s.Waiting
			queues[s.Inode] = queue
			if now.Sub(queue.since) >= stallLimit {
				stalled = fmt.Sprintf("Envoy does not accept connections on port %d", port)
			}
		}
		if s.Address.Addr().IsUnspecified() {
			listens[port] = listens[port].or(accepts(s))
		}
	}
	c.queues = queues
	out, in := listens[OutboundPort], listens[InboundPort]
	both := Families{IPv4: out.IPv4 && in.IPv4 && !foreign.IPv4,
		IPv6: out.IPv6 && in.IPv6 && !foreign.IPv6}
	c.gone = stalled == "" && stranger == "" && !both.any()
	switch {
	case stranger != "" && !both.any():
		return both, stranger
	case stalled != "":
		return Families{}, stalled
	case !out.any():
		return both, fmt.Sprintf("Envoy does not listen on port %d", OutboundPort)
	case !both.any():
		return both, fmt.Sprintf("Envoy does not listen on port %d", InboundPort)
	}
	return both, ""
}

// accepts returns the families of the connections that a listener accepts.
func accepts(s sockdiag.Socket) Families {
	address := s.Address.Addr()
	return Families{IPv4: address.Unmap().Is4() || address.IsUnspecified() && !s.IPv6Only,
		IPv6: address.Is6() && !address.Is4In6()}
}

// connect opens and closes a marked connection to a port of Envoy, without waiting.
func connect(families Families, port uint16) {
	address := "127.0.0.1"
	if !families.IPv4 {
		address = "::1"
	}
	dialer := net.Dialer{Timeout: 100 * time.Millisecond,
		Control: func(_, _ string, raw syscall.RawConn) error {
			var failure error
			if err := raw.Control(func(fd uintptr) {
				failure = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, probeMark)
			}); err != nil {
				return err
			}
			return failure
		}}
	connection, err := dialer.DialContext(context.Background(), "tcp",
		net.JoinHostPort(address, strconv.Itoa(int(port))))
	if err == nil {
		_ = connection.Close()
	}
}

// capturedConnections reports whether Envoy has connections that were captured: at its ports, or
// with a client's address.
func capturedConnections(envoy uint32) (bool, error) {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	here := map[netip.Addr]bool{}
	for _, a := range own {
		if network, err := netip.ParsePrefix(a.String()); err == nil {
			here[network.Addr()] = true
		}
	}
	found := false
	err = sockdiag.Each(sockdiag.TCP, func(s sockdiag.Socket) {
		port := s.Address.Port()
		address := s.Address.Addr().Unmap()
		found = found || port == OutboundPort || port == InboundPort ||
			s.UID == envoy && !address.IsLoopback() && !here[address]
	}, sockdiag.Established, sockdiag.FinWait1, sockdiag.FinWait2, sockdiag.CloseWait)
	return found, err
}
