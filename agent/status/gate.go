package status

import (
	"net"
	"slices"

	"outrider.org/outrider/agent/admission"
)

// Limits of the connections to one address, for three groups of clients. The groups do not affect
// each other, and within a group idle connections are evicted first: see package admission.
var (
	// for root, the agent's own user and Envoy's
	trustedLimits = admission.Limits{Total: 128, PerKey: 64}
	localLimits   = admission.Limits{Total: 128, PerKey: 32} // for all other users of this host
	remoteLimits  = admission.Limits{Total: 256, PerKey: 32} // for other hosts
)

// tooMany is the response to connections beyond the limits.
const tooMany = "HTTP/1.1 503 Service Unavailable\r\n" +
	"Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n" +
	"Content-Length: 53\r\n\r\nthere are too many connections of this user or host\r\n"

// gate limits the connections to one address, in total and for each local user and remote host.
type gate struct {
	trusted                   []uint32
	privileged, local, remote *admission.Pool
}

func newGate(trusted []uint32) *gate {
	return &gate{trusted: trusted, privileged: admission.NewPool(trustedLimits),
		local:  admission.NewPool(localLimits),
		remote: admission.NewPool(remoteLimits)}
}

func (g *gate) listen(inner net.Listener) net.Listener {
	return admission.NewListener(inner, admission.Options{RefusalResponse: []byte(tooMany),
		Admit: func(c net.Conn) (*admission.Pool, admission.ClientKey) {
			key := admission.KeyOfTCP(c)
			return g.pool(key), key
		}})
}

func (g *gate) pool(key admission.ClientKey) *admission.Pool {
	switch {
	case !key.Local():
		return g.remote
	case g.isTrusted(key):
		return g.privileged
	}
	return g.local
}

func (g *gate) isTrusted(key admission.ClientKey) bool {
	return key.Local() && slices.Contains(g.trusted, key.UID)
}

// stats returns the sum of the statistics of all groups.
func (g *gate) stats() admission.Stats {
	return admission.SumStats(g.privileged, g.local, g.remote)
}
