package xds

import (
	"net"
	"runtime"

	"outrider.org/outrider/agent/admission"
)

// Limits of a server for the Envoys of many hosts. Each listening socket has its own limit of
// connections, and counts clients on this host separately from clients on other hosts. One user,
// address (IPv6: /64) or identity may use half of each limit.
const (
	fleetConnections       = 24_576
	fleetStreams           = 32_768
	fleetStreamsPerSecond  = 500 // new streams per second, multiplied by GOMAXPROCS
	fleetSubscriptionBytes = 8 << 20
)

// WithFleetLimits returns options with the limits of a server for the Envoys of many hosts. It does
// not replace limits that are set already, such as ConnectsPerSecond.
func WithFleetLimits(options Options) Options {
	setDefault(&options.MaxStreams, fleetStreams)
	setDefault(&options.MaxStreamsPerIdentity, fleetStreams/2)
	setDefault(&options.ConnectsPerSecond, fleetStreamsPerSecond*runtime.GOMAXPROCS(0))
	setDefault(&options.MaxSubscriptionBytes, fleetSubscriptionBytes)
	setDefault(&options.MaxConcurrentResponseBuilds, runtime.GOMAXPROCS(0))
	options.move = (*stream).move
	return options
}

// LimitConnections limits the connections of a TCP listener. When the limit is reached, it closes
// the connection that has been idle longest among those on which no client was admitted yet. It
// never closes connections of admitted clients.
func LimitConnections(inner net.Listener) net.Listener {
	limits := admission.Limits{Total: fleetConnections, PerKey: fleetConnections / 2}
	return limitTCP(inner, admission.NewPool(limits), admission.NewPool(limits))
}

func limitTCP(inner net.Listener, local, remote *admission.Pool) net.Listener {
	return limited{admission.NewListener(inner, admission.Options{
		Admit: admission.AdmitTCP(local, remote)})}
}

type limited struct{ *admission.Listener }

// Accept implements net.Listener.
func (l limited) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return connection{accepted, Peer{Address: accepted.RemoteAddr().String(),
		connection: accepted.(*admission.Conn)}}, nil
}
