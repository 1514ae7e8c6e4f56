package xds

import (
	"net"
	"runtime"

	"outrider.org/outrider/agent/admission"
)

// Limits of a server for the Envoys of one host on Unix sockets. Each epoch has one connection with
// an ADS stream, and one for each worker that reports failed requests. When an Envoy with 50,000
// resources reconnects, its request has about 5 MB.
const (
	// connections of Envoys' main threads, the agent and root, on all sockets together
	hostConnections       = 64
	otherConnections      = 32 // connections of all other users together
	userConnections       = 16 // connections of one of the other users
	hostStreams           = 64 // half of the streams are reserved for Envoys, the agent and root
	hostStreamsPerSecond  = 50 // new streams; others wait up to a second before they are refused
	hostMessageBytes      = 8 << 20
	hostSubscriptionBytes = 8 << 20
)

// ForHost returns options with the limits of a server for the Envoys of one host.
func ForHost(options Options) Options {
	options.MaxStreams, options.ConnectsPerSecond = hostStreams, hostStreamsPerSecond
	options.MaxMessageBytes, options.MaxSubscriptionBytes = hostMessageBytes, hostSubscriptionBytes
	return options
}

// connections limits the connections to the sockets of a Sockets.
type connections struct {
	// reports whether a user runs Envoy or the agent, or is root; nil: all users count as such
	own         func(uid uint32) bool
	ours, other *admission.Pool
}

func newConnections(own func(uid uint32) bool) *connections {
	return &connections{own: own,
		ours:  admission.NewPool(admission.Limits{Total: ownConnections(), PerKey: ownConnections()}),
		other: admission.NewPool(admission.Limits{Total: otherConnections, PerKey: userConnections})}
}

// ownConnections returns the limit for Envoys, the agent and root: hostConnections, and one
// connection for each worker of four Envoys.
func ownConnections() int { return hostConnections + 4*runtime.NumCPU() }

// limit limits the connections to a socket. It never closes an established connection, because an
// xDS stream may be silent for days.
func (c *connections) limit(bound net.Listener) net.Listener {
	return admission.NewListener(bound, admission.Options{Busy: true, Admit: c.admit})
}

// admit returns the pool and the key of a connection that was accepted by a listener of Listen.
func (c *connections) admit(from net.Conn) (*admission.Pool, admission.Key) {
	uid := PeerOfAddress(from.RemoteAddr()).UID
	if c.own == nil || c.own(uid) {
		return c.ours, admission.Key{}
	}
	return c.other, admission.KeyOfUser(uid)
}
