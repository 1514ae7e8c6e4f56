package xds

import (
	"net"
	"runtime"

	"outrider.org/outrider/agent/admission"
)

// Limits of a server for the Envoys of many hosts. Each listener has its own limit of connections,
// separate for clients on this host and on others. A single user, address (IPv6: /64) or identity
// may use half of a limit.
const (
	fleetConnections       = 24_576
	fleetStreams           = 32_768
	fleetStreamsPerSecond  = 500 // new streams per second, for each core
	fleetSubscriptionBytes = 8 << 20
)

// ForFleet returns options with the limits of a server for the Envoys of many hosts. Limits that
// are set already, such as ConnectsPerSecond, are not changed.
func ForFleet(options Options) Options {
	setDefault(&options.MaxStreams, fleetStreams)
	setDefault(&options.MaxStreamsPerIdentity, fleetStreams/2)
	setDefault(&options.ConnectsPerSecond, fleetStreamsPerSecond*runtime.GOMAXPROCS(0))
	setDefault(&options.MaxSubscriptionBytes, fleetSubscriptionBytes)
	setDefault(&options.Concurrency, runtime.GOMAXPROCS(0))
	options.move = (*stream).move
	return options
}

// LimitTCP limits the connections of a TCP listener. At the limit, a connection on which no client
// was admitted yet is closed, the longest idle first; connections of admitted clients are never
// closed.
func LimitTCP(inner net.Listener) net.Listener {
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
