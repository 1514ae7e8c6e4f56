package mesh

import (
	"net"
	"runtime"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/xds"
)

// Limits of an agent's xDS server, which serves the epochs of one Envoy. Each epoch has one
// connection with one ADS stream, and one for each worker that reports failed requests. When an
// Envoy with 50,000 resources reconnects, its request has about 5 MB.
const (
	xdsConnections       = 64 // of Envoys' main threads, the agent and root, on all sockets
	otherConnections     = 32 // of all other users
	userConnections      = 16 // of one of them
	xdsStreams           = 64 // half of them are reserved for Envoys, the agent and root
	xdsStreamsPerSecond  = 50 // new ones; others wait for a second, then they are refused
	xdsMessageBytes      = 8 << 20
	xdsSubscriptionBytes = 8 << 20
	// MaxViews is the number of nodes with different resources that are served at the same time:
	// those of overlapping epochs and of applications.
	MaxViews = 8
)

// Limited adds an agent's limits to the options of an xDS server.
func Limited(options xds.Options) xds.Options {
	options.MaxStreams, options.ConnectsPerSecond = xdsStreams, xdsStreamsPerSecond
	options.MaxMessageBytes, options.MaxSubscriptionBytes = xdsMessageBytes, xdsSubscriptionBytes
	return options
}

// connections limits the connections to the sockets of an agent.
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
func ownConnections() int { return xdsConnections + 4*runtime.NumCPU() }

// limit limits the connections to a socket. Connections are never evicted: a stream may be silent
// for days.
func (c *connections) limit(bound net.Listener) net.Listener {
	return admission.Listen(bound, admission.Options{Busy: true, Admit: c.admit})
}

// admit returns the pool and the key of a connection that a listener of package xds accepted.
func (c *connections) admit(from net.Conn) (*admission.Pool, admission.Key) {
	uid := xds.PeerOf(from.RemoteAddr()).UID
	if c.own == nil || c.own(uid) {
		return c.ours, admission.Key{}
	}
	return c.other, admission.User(uid)
}
