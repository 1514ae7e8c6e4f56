// Package ports tracks the addresses of the mesh's listeners on this host: those that Envoy could
// not bind (UnboundListeners), and those that the Envoy of another agent uses as well
// (PortTracker).
package ports

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
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// conditionPortShared is active while the Envoy of another agent uses the port of one of the mesh's
// listeners.
const conditionPortShared = "port-shared"

// sharedAgain is the polling interval while a port is shared.
const sharedAgain = 30 * time.Second

// PortTracker tracks the ports of the mesh's listeners and raises a condition while another agent's
// Envoy uses one of them. It does not refuse the mesh configuration, because the newer of two
// configurations with one port is not always the wrong one.
type PortTracker struct {
	lifecycle.Readiness
	host     hostconflict.Host
	source   xds.Source
	folder   string // the agent's own runtime directory
	board    *condition.Registry
	accepted chan struct{} // buffered; receives a value after Envoy has accepted listeners
	notify   func()        // called after Envoy has accepted listeners; must not block

	mu     sync.Mutex
	node   *corev3.Node // node of the Envoy that last accepted listeners
	at     *resource.Feed
	change uint64 // sequence number of the change of listeners that claims result from
	claims []config.HostClaim
}

// NewPortTracker returns the PortTracker of the mesh configuration that source serves. folder is
// the agent's runtime directory. notify is called after Envoy has accepted listeners, and must not
// block.
func NewPortTracker(host hostconflict.Host, source xds.Source, folder string,
	board *condition.Registry,
	notify func(),
) *PortTracker {
	return &PortTracker{host: host, source: source, folder: folder, board: board, notify: notify,
		accepted: make(chan struct{}, 1)}
}

// OnAck records that an Envoy has accepted resources. It does not block.
func (t *PortTracker) OnAck(node *corev3.Node, typeURL string) {
	if typeURL != resource.ListenerType {
		return
	}
	t.mu.Lock()
	t.node = node
	t.mu.Unlock()
	select {
	case t.accepted <- struct{}{}:
	default: // a check is already pending
	}
	t.notify()
}

// LastAcceptingNode returns the node of the Envoy that last accepted listeners, or nil.
func (t *PortTracker) LastAcceptingNode() *corev3.Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.node
}

// Claims returns the addresses that the mesh's listeners bind; nil before Envoy has accepted
// listeners.
func (t *PortTracker) Claims() []config.HostClaim {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.node == nil {
		return nil
	}
	feed, err := t.source.Feed(t.node)
	if err != nil {
		return nil // without a feed, Envoy receives no listeners, so none binds an address
	}
	snapshot, _ := feed.Current()
	if change := snapshot.LastChange(resource.ListenerType); feed != t.at || change != t.change {
		t.at, t.change, t.claims = feed, change, listenerClaims(snapshot.ByType(resource.ListenerType))
	}
	return t.claims
}

// listenerClaims returns the TCP addresses that listeners bind.
func listenerClaims(listeners map[string]*resource.Resource) []config.HostClaim {
	var claims []config.HostClaim
	for name, r := range listeners {
		var listener listenerv3.Listener
		if err := proto.Unmarshal(r.EncodedMessage(), &listener); err != nil {
			continue // cannot happen: the agent encoded the listener itself
		}
		if !binds(&listener) {
			continue
		}
		address := listener.GetAddress().GetSocketAddress()
		if port := address.GetPortValue(); port != 0 &&
			address.GetProtocol() == corev3.SocketAddress_TCP {
			claims = append(claims, config.HostClaim{Key: "listener " + name,
				Host: address.GetAddress(), Port: int(port), Envoy: true})
		}
	}
	slices.SortFunc(claims, func(a, b config.HostClaim) int {
		return strings.Compare(a.Key,
			b.Key)
	})
	return claims
}

// binds reports whether Envoy binds the address of a listener. With interception, most listeners
// only receive connections that virtualInbound or virtualOutbound has accepted.
func binds(listener *listenerv3.Listener) bool {
	return listener.BindToPort == nil || listener.BindToPort.Value
}

// Name returns the name of this component.
func (t *PortTracker) Name() string { return "mesh ports" }

// Run checks for shared ports whenever Envoy accepts listeners, until ctx ends.
func (t *PortTracker) Run(ctx context.Context) error {
	t.MarkReady()
	var again <-chan time.Time // receives while a port is shared
	for {
		select {
		case <-t.accepted:
		case <-again:
		case <-ctx.Done():
			return nil
		}
		shared := t.host.ConflictingClaims(ctx, t.folder, t.Claims)
		again = nil
		if len(shared) == 0 {
			t.board.Clear(conditionPortShared)
			continue
		}
		t.board.Raise(conditionPortShared, condition.Error, fmt.Sprintf(
			"%s; connections go to either Envoy: give one of the two another port",
			strings.Join(shared, ", ")))
		again = time.After(sharedAgain)
	}
}
