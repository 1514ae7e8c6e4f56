package xds

import (
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// The services a stream may use.
const (
	ServiceADS = "ads"
	ServiceSDS = "sds"
)

// Stream identifies one stream of one client. Two epochs have a stream each, with the same node.
type Stream struct {
	ID      uint64       // grows with each stream of this server
	Service string       // ServiceADS or ServiceSDS
	Delta   bool         // incremental
	Node    *corev3.Node // of the client's first request; must not be modified
	Peer    Peer
	Since   time.Time
}

// Observer receives the events of all streams. Each stream's goroutine calls its methods, so that
// they must be safe for concurrent use. A method that blocks delays its stream.
type Observer interface {
	Connected(Stream) // after the first request
	// nil: the client went away, or the server stops
	Disconnected(Stream, error)
	Pushed(Stream, Push)                             // a response goes out
	Accepted(stream Stream, typeURL, version string) // the client's ACK of it
	// the client's NACK, once the refused resources are known
	Refused(Stream, Refusal)
	// resources refused before are accepted or reverted
	Recovered(stream Stream, typeURL string, names []string)
}

// Push is a response that goes out.
type Push struct {
	Type      string
	Nonce     string
	Version   string
	Resources int      // how many it carries
	Removed   []string // which it says do not exist
	Bytes     int      // of its resources

	response *response
}

// Names returns the names of the resources it carries, sorted.
func (p Push) Names() []string {
	names := make([]string, len(p.response.resources))
	for i, r := range p.response.resources {
		names[i] = r.Name
	}
	slices.Sort(names)
	return names
}

type nobody struct{}

func (nobody) Connected(Stream)                   {}
func (nobody) Disconnected(Stream, error)         {}
func (nobody) Pushed(Stream, Push)                {}
func (nobody) Accepted(Stream, string, string)    {}
func (nobody) Refused(Stream, Refusal)            {}
func (nobody) Recovered(Stream, string, []string) {}
