package xds

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Services that a stream may use.
const (
	ServiceADS = "ads"
	ServiceSDS = "sds"
)

// Stream identifies one stream of one client. Two epochs have different streams, but the same node.
type Stream struct {
	ID      uint64       // number of the stream; it grows with each stream of this server
	Service string       // service that the stream uses: ServiceADS or ServiceSDS
	Delta   bool         // incremental xDS, not state of the world
	Node    *corev3.Node // node of the client's first request; must not be modified
	Peer    Peer
	Since   time.Time
}

// Observer receives the events of all streams, those of one stream one after the other. The methods
// must be safe for concurrent use. A method that blocks delays its stream.
type Observer interface {
	Connected(Stream) // called after the first request of a stream
	// Disconnected reports the end of a stream. The error is nil if the client disconnected or the
	// server stops.
	Disconnected(Stream, error)
	Pushed(Stream, Push)                             // called for each response that is sent
	Accepted(stream Stream, typeURL, version string) // called for the client's ACK of a response
	// Refused reports the client's NACK, once the refused resources are known.
	Refused(Stream, Refusal)
	// Recovered reports resources that were refused before, and are now accepted or reverted.
	Recovered(stream Stream, typeURL string, names []string)
}

// Push describes a response that is sent.
type Push struct {
	Type      string
	Nonce     string
	Version   string
	Resources int      // number of resources in the response
	Removed   []string // names of resources that the response says do not exist
	Bytes     int      // size of the response's resources in bytes

	response *response
}

// Names returns the sorted names of the resources in the response.
func (p Push) Names() []string {
	names := make([]string, len(p.response.resources))
	for i, r := range p.response.resources {
		names[i] = r.Name
	}
	slices.Sort(names)
	return names
}

type noopObserver struct{}

func (noopObserver) Connected(Stream)                   {}
func (noopObserver) Disconnected(Stream, error)         {}
func (noopObserver) Pushed(Stream, Push)                {}
func (noopObserver) Accepted(Stream, string, string)    {}
func (noopObserver) Refused(Stream, Refusal)            {}
func (noopObserver) Recovered(Stream, string, []string) {}
