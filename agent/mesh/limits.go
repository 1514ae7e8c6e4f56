package mesh

import (
	"net"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/xds"
)

// Limits of the xDS server of an agent, which serves the epochs of one Envoy and not a fleet: each
// has a connection, and a stream for everything it asks over ADS. A request of one with 50,000
// resources, which it names when it connects again, has some 5 MB.
const (
	xdsConnections       = 64 // on all sockets
	xdsStreams           = 64
	xdsStreamsPerSecond  = 50 // that begin; more wait for a second, then they are refused
	xdsMessageBytes      = 8 << 20
	xdsSubscriptionBytes = 8 << 20
)

// Limited returns the options of an xDS server with the limits of an agent's.
func Limited(options xds.Options) xds.Options {
	options.MaxStreams, options.ConnectsPerSecond = xdsStreams, xdsStreamsPerSecond
	options.MaxMessageBytes, options.MaxSubscriptionBytes = xdsMessageBytes, xdsSubscriptionBytes
	return options
}

func newConnections() *admission.Pool {
	return admission.NewPool(admission.Limits{Total: xdsConnections, PerKey: xdsConnections})
}

// limit limits the connections to a socket by a pool that it shares with others. A stream may be
// silent for days, so none gives way.
func limit(bound net.Listener, connections *admission.Pool) net.Listener {
	return admission.Listen(bound, admission.Options{Busy: true, Admit: func(net.Conn) (*admission.Pool, admission.Key) {
		return connections, admission.Key{}
	}})
}
