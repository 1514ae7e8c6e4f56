package xds

import (
	"net"
	"runtime"

	"outrider.org/outrider/agent/admission"
)

// Limits of a server for many hosts. Connections are those of one listener, apart for users of this
// host and for others. One user or address (IPv6: /64) and one identity have at most half.
const (
	fleetConnections       = 16_384
	fleetStreams           = 32_768
	fleetStreamsPerSecond  = 500 // new ones, by core
	fleetSubscriptionBytes = 8 << 20
)

// ForFleet returns options with the limits of a server for the Envoys of many hosts.
// ConnectsPerSecond, if it is not 0, and the other limits of the options stay.
func ForFleet(options Options) Options {
	setDefault(&options.MaxStreams, fleetStreams)
	setDefault(&options.MaxStreamsPerIdentity, fleetStreams/2)
	setDefault(&options.ConnectsPerSecond, fleetStreamsPerSecond*runtime.GOMAXPROCS(0))
	setDefault(&options.MaxSubscriptionBytes, fleetSubscriptionBytes)
	return options
}

// LimitTCP limits the connections of a TCP listener. At a limit, connections on which no client was
// admitted yet give way, the longest idle first; the others stay.
func LimitTCP(inner net.Listener) net.Listener {
	limits := admission.Limits{Total: fleetConnections, PerKey: fleetConnections / 2}
	return limitTCP(inner, admission.NewPool(limits), admission.NewPool(limits))
}

func limitTCP(inner net.Listener, local, remote *admission.Pool) net.Listener {
	return limited{admission.Listen(inner, admission.Options{
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
