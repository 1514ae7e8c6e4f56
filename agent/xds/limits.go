package xds

import (
	"net"
	"runtime"

	"outrider.org/outrider/agent/admission"
)

// Limits of a server that serves the Envoys of one host on Unix sockets. Each epoch has one
// connection with one ADS stream, and one for each worker that reports failed requests. When an
// Envoy with 50,000 resources reconnects, its request has about 5 MB.
const (
	hostConnections       = 64 // of Envoys' main threads, the agent and root, on all sockets
	otherConnections      = 32 // of all other users
	userConnections       = 16 // of one of them
	hostStreams           = 64 // half of them are reserved for Envoys, the agent and root
	hostStreamsPerSecond  = 50 // new ones; others wait for a second, then they are refused
	hostMessageBytes      = 8 << 20
	hostSubscriptionBytes = 8 << 20
)

// ForHost returns options with the limits of a server for the Envoys of one host.
func ForHost(options Options) Options {
	options.MaxStreams, options.ConnectsPerSecond = hostStreams, hostStreamsPerSecond
	options.MaxMessageBytes, options.MaxSubscriptionBytes = hostMessageBytes, hostSubscriptionBytes
	return options
}

// connections limits the connections to Sockets.
type connections struct {
	own         func(uid uint32) bool // users of Envoys, the agent and root; nil: all
	ours, other *admission.Pool
}

func newConnections(own func(uid uint32) bool) *connections {
	return &connections{own: own,
		ours:  admission.NewPool(admission.Limits{Total: ownConnections(), PerKey: ownConnections()}),
		other: admission.NewPool(admission.Limits{Total: otherConnections, PerKey: userConnections})}
}

// ownConnections is the limit for Envoys, the agent and root: that of the main threads, and the
// workers of four Envoys.
func ownConnections() int { return hostConnections + 4*runtime.NumCPU() }

// limit limits the connections to a socket. Connections are never evicted: a stream may be silent
// for days.
func (c *connections) limit(bound net.Listener) net.Listener {
	return admission.Listen(bound, admission.Options{Busy: true, Admit: c.admit})
}

// admit returns the pool and the key of a connection that a listener of Listen accepted.
func (c *connections) admit(from net.Conn) (*admission.Pool, admission.Key) {
	uid := PeerOf(from.RemoteAddr()).UID
	if c.own == nil || c.own(uid) {
		return c.ours, admission.Key{}
	}
	return c.other, admission.User(uid)
}
