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
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// conditionPortShared is the condition of listeners of the mesh whose port another agent's Envoy
// has too.
const conditionPortShared = "port-shared"

// sharedAgain is how often a port that is shared is looked at again: the other side may have given
// it up.
const sharedAgain = 30 * time.Second

// Ports knows the ports of the mesh's listeners, and raises a condition when another agent's Envoy
// has one of them too. A change of the mesh is not refused for that: it is no transaction, and the
// wrong one of the two is not always the later one.
type Ports struct {
	host   neighbour.Host
	source xds.Source
	folder string // the agent's own runtime directory
	board  *condition.Board
	taken  chan struct{} // holds one: Envoy has accepted listeners

	mu     sync.Mutex
	node   *corev3.Node // of the Envoy that accepted listeners last
	at     *resource.Feed
	change uint64 // of at, that claims are of
	claims []config.Claim
}

// NewPorts returns the ports of the mesh that source serves, for the agent of a runtime directory.
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
	default: // one look sees both
	}
}

// LastNode returns the node of the Envoy that accepted listeners last; nil before the first.
func (m *Ports) LastNode() *corev3.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// Claims returns the addresses of the mesh's listeners.
func (m *Ports) Claims() []config.Claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node == nil {
		return nil
	}
	feed, err := m.source.Feed(m.node)
	if err != nil {
		return nil // Envoy gets nothing either
	}
	snapshot, _ := feed.Current()
	if change := snapshot.Changed(resource.ListenerType); feed != m.at || change != m.change {
		m.at, m.change, m.claims = feed, change, listenerClaims(snapshot.Set(resource.ListenerType))
	}
	return m.claims
}

// listenerClaims are the TCP addresses of listeners.
func listenerClaims(listeners map[string]*resource.Resource) []config.Claim {
	var claims []config.Claim
	for name, r := range listeners {
		var listener listenerv3.Listener
		if err := proto.Unmarshal(r.Value(), &listener); err != nil {
			continue // our own encoding; Envoy would refuse it
		}
		address := listener.GetAddress().GetSocketAddress()
		if port := address.GetPortValue(); port != 0 && address.GetProtocol() == corev3.SocketAddress_TCP {
			claims = append(claims, config.Claim{Key: "listener " + name, Host: address.GetAddress(), Port: int(port), Envoy: true})
		}
	}
	slices.SortFunc(claims, func(a, b config.Claim) int { return strings.Compare(a.Key, b.Key) })
	return claims
}

// Name is the part's name.
func (m *Ports) Name() string { return "mesh ports" }

// Run looks whenever Envoy has taken listeners, until ctx ends.
func (m *Ports) Run(ctx context.Context) error {
	told := ""
	for {
		var again <-chan time.Time
		if told != "" {
			again = time.After(sharedAgain)
		}
		select {
		case <-m.taken:
		case <-again:
		case <-ctx.Done():
			return nil
		}
		shared := m.host.Shared(ctx, m.folder, m.Claims)
		sentence := ""
		if len(shared) > 0 {
			sentence = fmt.Sprintf("%s; connections go to either Envoy: give one of the two another port", strings.Join(shared, ", "))
		}
		if sentence == "" {
			m.board.Clear(conditionPortShared)
		} else {
			m.board.Raise(conditionPortShared, condition.Error, sentence)
		}
		told = sentence
	}
}
