package agent

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
)

// conditionPortShared is the condition of listeners of the mesh whose port another agent's Envoy has too.
const conditionPortShared = "port-shared"

// sharedAgain is how often a port that is shared is looked at again: the other side may have given it up.
const sharedAgain = 30 * time.Second

// meshPorts knows what the mesh has Envoy listen on, and tells when a neighbour listens there as well. Changes of the mesh are not
// refused for it: they are no transaction, and the one who comes second is not always the one who is wrong.
type meshPorts struct {
	host   neighbour.Host
	feed   func(*corev3.Node) (*resource.Feed, error)
	folder func() string // the agent's own runtime folder
	board  *condition.Board
	taken  chan struct{} // holds one: Envoy has taken listeners

	mu     sync.Mutex
	node   *corev3.Node // of the Envoy that took listeners last
	at     *resource.Feed
	change uint64 // of at, that claims are of
	claims []config.Claim
}

// accepted takes in that an Envoy has taken resources. It does not block.
func (m *meshPorts) accepted(node *corev3.Node, typeURL string) {
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

// lastNode is how the Envoy introduced itself that took listeners last; nil before there was one.
func (m *meshPorts) lastNode() *corev3.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// now is what the mesh has Envoy listen on.
func (m *meshPorts) now() []config.Claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node == nil {
		return nil
	}
	feed, err := m.feed(m.node)
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
func (m *meshPorts) Name() string { return "mesh ports" }

// Run looks whenever Envoy has taken listeners, until ctx ends.
func (m *meshPorts) Run(ctx context.Context) error {
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
		shared := m.host.Shared(ctx, m.folder(), m.now)
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
