package xds

import (
	"net"
	"runtime"

	"outrider.org/outrider/agent/admission"
)

// Limits of a server for the Envoys of one host on Unix sockets. An epoch has one connection for
// its ADS stream, and one from each worker thread that reports failed requests. If an Envoy with
// 50,000 resources reconnects, its request has about 5 MB.
const (
	// connections of Envoys' main threads, the agent and root, on all sockets together; see
	// ownConnections
	hostConnections  = 64
	otherConnections = 32 // connections of all other users together
	userConnections  = 16 // connections of a single one of the other users
	hostStreams      = 64 // half of the streams are reserved for Envoys, the agent and root
	// streams that begin per second; further ones wait for up to a second, or are refused
	hostStreamsPerSecond  = 50
	hostMessageBytes      = 8 << 20
	hostSubscriptionBytes = 8 << 20
)

// WithHostLimits returns options with the limits of a server for the Envoys of one host.
func WithHostLimits(options Options) Options {
	options.MaxStreams, options.ConnectsPerSecond = hostStreams, hostStreamsPerSecond
	options.MaxMessageBytes, options.MaxSubscriptionBytes = hostMessageBytes, hostSubscriptionBytes
	return options
}

// connections limits the connections to the Unix sockets of a Sockets.
type connections struct {
	// own reports whether a user runs Envoy or the agent, or is root; nil means true for all users.
	own         func(uid uint32) bool
	ours, other *admission.Pool
}

func newConnections(own func(uid uint32) bool) *connections {
	return &connections{own: own,
		ours:  admission.NewPool(admission.Limits{Total: ownConnections(), PerKey: ownConnections()}),
		other: admission.NewPool(admission.Limits{Total: otherConnections, PerKey: userConnections})}
}

// ownConnections returns the limit for Envoys, the agent and root: hostConnections, plus one
// connection for each worker thread of four Envoys.
func ownConnections() int { return hostConnections + 4*runtime.NumCPU() }

// limit limits the connections to a Unix socket. It never closes an established connection, because
// an xDS stream may be idle for days.
func (c *connections) limit(bound net.Listener) net.Listener {
	return admission.NewListener(bound, admission.Options{NeverEvict: true, Admit: c.admit})
}

// admit returns the pool in which a connection counts, and its key there. A listener that Listen
// returned must have accepted the connection.
func (c *connections) admit(from net.Conn) (*admission.Pool, admission.ClientKey) {
	uid := PeerOfAddress(from.RemoteAddr()).UID
	if c.own == nil || c.own(uid) {
		return c.ours, admission.ClientKey{}
	}
	return c.other, admission.KeyOfUser(uid)
}
