package xds

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// gRPC services on which clients open streams.
const (
	ServiceADS = "ads"
	ServiceSDS = "sds"
)

// Stream identifies one stream of one client. Two epochs have different streams although they have
// the same node.
type Stream struct {
	ID       uint64       // number of the stream; later streams of this server have higher numbers
	Service  string       // service that the stream uses: ServiceADS or ServiceSDS
	Delta    bool         // incremental xDS; false: state of the world
	Node     *corev3.Node // node of the client's first request; must not be modified
	Peer     Peer
	OpenedAt time.Time
}

// Observer receives the events of all streams. The events of one stream arrive one after the other,
// but those of different streams concurrently. A method that blocks delays its stream.
type Observer interface {
	OnConnect(Stream) // called after the first request of a stream
	// OnDisconnect reports that a stream has ended. The error is nil if the client disconnected or
	// the server stops.
	OnDisconnect(Stream, error)
	OnPush(Stream, Push) // called for each response that is sent
	// called when the client accepts a response (ACK)
	OnAck(stream Stream, typeURL, version string)
	// OnNack reports that the client refused a response (NACK), once it is known which resources
	// were refused.
	OnNack(Stream, Refusal)
	// OnNackResolved reports that resources are no longer refused: the client accepted them, or the
	// refused version was withdrawn.
	OnNackResolved(stream Stream, typeURL string, names []string)
}

// Push describes a response that is sent.
type Push struct {
	Type      string
	Nonce     string
	Version   string
	Resources int      // number of resources in the response
	Removed   []string // names of resources that, according to the response, do not exist
	Bytes     int      // total size of the resources in bytes

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

func (noopObserver) OnConnect(Stream)                        {}
func (noopObserver) OnDisconnect(Stream, error)              {}
func (noopObserver) OnPush(Stream, Push)                     {}
func (noopObserver) OnAck(Stream, string, string)            {}
func (noopObserver) OnNack(Stream, Refusal)                  {}
func (noopObserver) OnNackResolved(Stream, string, []string) {}
