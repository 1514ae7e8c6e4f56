package mesh

import (
	"net"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/xds"
)

// Limits of an agent's xDS server, which serves the epochs of one Envoy. Each epoch has one
// connection with one ADS stream. When an Envoy with 50,000 resources reconnects, its request has
// about 5 MB.
const (
	xdsConnections       = 64 // of all sockets
	xdsStreams           = 64
	xdsStreamsPerSecond  = 50 // new ones; others wait for a second, then they are refused
	xdsMessageBytes      = 8 << 20
	xdsSubscriptionBytes = 8 << 20
)

// Limited adds an agent's limits to the options of an xDS server.
func Limited(options xds.Options) xds.Options {
	options.MaxStreams, options.ConnectsPerSecond = xdsStreams, xdsStreamsPerSecond
	options.MaxMessageBytes, options.MaxSubscriptionBytes = xdsMessageBytes, xdsSubscriptionBytes
	return options
}

func newConnections() *admission.Pool {
	return admission.NewPool(admission.Limits{Total: xdsConnections, PerKey: xdsConnections})
}

// limit limits the connections to a socket by a pool shared with other sockets. Connections are
// never evicted: a stream may be silent for days.
func limit(bound net.Listener, connections *admission.Pool) net.Listener {
	return admission.Listen(bound, admission.Options{Busy: true,
		Admit: func(net.Conn) (*admission.Pool, admission.Key) {
			return connections, admission.Key{}
		}})
}
