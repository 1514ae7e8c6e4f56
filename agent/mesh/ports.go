package mesh

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/neighbour"
	"outrider.org/outrider/agent/part"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// conditionPortShared is active while another agent's Envoy uses the port of a mesh listener.
const conditionPortShared = "port-shared"

// sharedAgain is the polling interval while a port is shared.
const sharedAgain = 30 * time.Second

// Ports tracks the ports of mesh listeners and raises a condition while another agent's Envoy uses
// the same port. Such a mesh configuration is not refused: the faulty one of the two is not always
// the newer one.
type Ports struct {
	part.Readiness
	host   neighbour.Host
	source xds.Source
	folder string // the agent's own runtime directory
	board  *condition.Board
	taken  chan struct{} // buffered: Envoy has accepted listeners
	// Accepted is called after Envoy has accepted listeners, and must not block; nil: nothing is.
	Accepted func()

	mu     sync.Mutex
	node   *corev3.Node // of the Envoy that last accepted listeners
	at     *resource.Feed
	change uint64 // version of at that claims are from
	claims []config.Claim
}

// NewPorts returns the Ports of the mesh configuration that source serves. folder is the agent's
// runtime directory.
func NewPorts(
	host neighbour.Host, source xds.Source, folder string, board *condition.Board,
) *Ports {
	return &Ports{
		host: host, source: source, folder: folder, board: board, taken: make(chan struct{}, 1),
	}
}

// accepted records that an Envoy has accepted resources. It does not block.
func (m *Ports) accepted(node *corev3.Node, typeURL string) {
	if typeURL != resource.ListenerType {
		return
	}
	m.mu.Lock()
	m.node = node
	m.mu.Unlock()
	select {
	case m.taken <- struct{}{}:
	default: // one check covers both
	}
	if m.Accepted != nil {
		m.Accepted()
	}
}

// LastNode returns the node of the Envoy that last accepted listeners, or nil.
func (m *Ports) LastNode() *corev3.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// Claims returns the addresses of the mesh listeners; nil before Envoy accepted any.
func (m *Ports) Claims() []config.Claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node == nil {
		return nil
	}
	feed, err := m.source.Feed(m.node)
	if err != nil {
		return nil // Envoy receives nothing, either
	}
	snapshot, _ := feed.Current()
	if change := snapshot.Changed(resource.ListenerType); feed != m.at || change != m.change {
		m.at, m.change, m.claims = feed, change, listenerClaims(snapshot.Set(resource.ListenerType))
	}
	return m.claims
}

// listenerClaims returns the TCP addresses that listeners bind.
func listenerClaims(listeners map[string]*resource.Resource) []config.Claim {
	var claims []config.Claim
	for name, r := range listeners {
		var listener listenerv3.Listener
		if err := proto.Unmarshal(r.Value(), &listener); err != nil {
			continue // our own encoding; Envoy would refuse it
		}
		if !binds(&listener) {
			continue
		}
		address := listener.GetAddress().GetSocketAddress()
		if port := address.GetPortValue(); port != 0 &&
			address.GetProtocol() == corev3.SocketAddress_TCP {
			claims = append(claims, config.Claim{Key: "listener " + name,
				Host: address.GetAddress(), Port: int(port), Envoy: true})
		}
	}
	slices.SortFunc(claims, func(a, b config.Claim) int { return strings.Compare(a.Key, b.Key) })
	return claims
}

// binds reports whether Envoy binds the address of a listener. With interception, most only get
// connections that others have accepted.
func binds(listener *listenerv3.Listener) bool {
	return listener.BindToPort == nil || listener.BindToPort.Value
}

// Name returns the name of the part.
func (m *Ports) Name() string { return "mesh ports" }

// Run checks for shared ports whenever Envoy accepts listeners, until ctx ends.
func (m *Ports) Run(ctx context.Context) error {
	m.MarkReady()
	var again <-chan time.Time // due while a port is shared
	for {
		select {
		case <-m.taken:
		case <-again:
		case <-ctx.Done():
			return nil
		}
		shared := m.host.Shared(ctx, m.folder, m.Claims)
		again = nil
		if len(shared) == 0 {
			m.board.Clear(conditionPortShared)
			continue
		}
		m.board.Raise(conditionPortShared, condition.Error, fmt.Sprintf(
			"%s; connections go to either Envoy: give one of the two another port",
			strings.Join(shared, ", ")))
		again = time.After(sharedAgain)
	}
}
