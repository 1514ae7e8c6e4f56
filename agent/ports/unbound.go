package ports

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/lifecycle"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// ConditionUnbound is active while the live Envoy cannot bind the address of a listener.
const ConditionUnbound = "listener-unbound"

const (
	// unboundPause is the polling interval while a listener cannot be bound. Polling is necessary
	// because no event reports that a program has closed a socket.
	unboundPause = time.Second
	// maxShown bounds the number of listeners in a sentence.
	maxShown = 3
	// bindPause is the pause between attempts to bind an address that no listed socket occupies.
	bindPause = time.Minute
)

// UnboundOptions configure UnboundListeners.
type UnboundOptions struct {
	Host   hostconflict.Host
	Source xds.Source
	// ResendListeners resends the named listeners to the Envoy of an xDS stream that has refused
	// them.
	ResendListeners func(ctx context.Context, stream uint64, names []string)
	// LiveEnvoy returns the PID of the live Envoy. EpochsChanged returns a channel that is closed
	// when the result of LiveEnvoy may have changed.
	LiveEnvoy     func() (pid int, live bool)
	EpochsChanged func() <-chan struct{}
	Conditions    *condition.Registry
}

// UnboundListeners tracks the listeners that Envoy cannot bind. Such a failure is a state of the
// host, not a fault of the mesh object: the object stays in force, and the listener is sent again
// once its address is free. UnboundListeners also tracks whether Envoy has refused its first
// resources.
//
// It considers only the responses (ACK, NACK) of the live Envoy, or those of all Envoys while none
// is live.
type UnboundListeners struct {
	lifecycle.Readiness
	UnboundOptions
	wake chan struct{}
	// descriptions of programs by cookie of their socket; used by Run only
	programs map[uint64]string

	mu       sync.Mutex
	streams  map[uint64]*answers // by stream ID
	problems []discovery.Problem
}

// answers is the state of the listeners and clusters of an xDS stream, according to its ACKs and
// NACKs.
type answers struct {
	stream  uint64
	pid     int32
	node    *corev3.Node
	unbound map[string]*unbound // by listener name
	// why the client refused all its first resources of a type, by type URL
	first map[string]string
}

// unbound is a listener that cannot be bound.
type unbound struct {
	address *corev3.SocketAddress
	by      resource.Origin // object from which the listener was translated; zero: unknown
	reason  string          // of the kernel, such as "Address already in use"
	again   time.Time       // earliest time of the next attempt
	sent    bool            // the listener was resent and has not been refused since
	problem discovery.Problem
}

// NewUnboundListeners returns an UnboundListeners.
func NewUnboundListeners(o UnboundOptions) *UnboundListeners {
	return &UnboundListeners{UnboundOptions: o, wake: make(chan struct{}, 1),
		programs: map[uint64]string{}, streams: map[uint64]*answers{}}
}

// OnNack records those listeners of a refusal that Envoy cannot bind, and returns the refusal
// without them. fresh reports whether a listener or its reason is new, or a resource was refused
// for another reason than a failed bind.
func (u *UnboundListeners) OnNack(stream xds.Stream, refusal xds.Refusal) (rest xds.Refusal,
	fresh bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	of := u.of(stream)
	rest = refusal
	rest.Resources, rest.Versions = nil, nil
	if rest.VersionsInUse != nil {
		rest.VersionsInUse = []string{}
	}
	for i, name := range refusal.Resources {
		if reason := bindError(refusal, name); reason != "" {
			fresh = u.add(of, name, reason) || fresh
			rest.Error = without(rest.Error, name)
			continue
		}
		rest.Resources = append(rest.Resources, name)
		rest.Versions = append(rest.Versions, refusal.Versions[i:min(i+1, len(refusal.Versions))]...)
		rest.VersionsInUse = append(rest.VersionsInUse, refusal.VersionsInUse[i:min(i+1,
			len(refusal.VersionsInUse))]...)
	}
	if len(rest.Resources) == len(refusal.Resources) {
		rest, fresh = refusal, true
		if kind := refusal.Type; refusal.NothingAccepted && (kind == resource.ListenerType ||
			kind == resource.ClusterType) {
			of.first[kind] = fmt.Sprintf("Envoy refused all of its first %ss: %s", resource.TypeName(kind),
				refusal.OneLineError())
		}
	}
	u.look()
	return rest, fresh || len(rest.Resources) > 0
}

// bindError returns the reason why Envoy cannot bind a refused listener. It returns "" for other
// types of resources and other reasons.
func bindError(refusal xds.Refusal, name string) string {
	if refusal.Type != resource.ListenerType {
		return ""
	}
	return xds.BindFailureReason(refusal.Error, name)
}

// without removes the line about a listener that cannot be bound from Envoy's message.
func without(message, name string) string {
	const head = "Error adding/updating listener(s) "
	lines := slices.DeleteFunc(strings.Split(strings.TrimPrefix(message, head), "\n"),
		func(line string) bool { return strings.HasPrefix(line, name+": cannot bind '") })
	return head + strings.Join(lines, "\n")
}

// of returns the state of a stream and creates it if necessary. Callers hold mu.
func (u *UnboundListeners) of(stream xds.Stream) *answers {
	if u.streams[stream.ID] == nil {
		u.streams[stream.ID] = &answers{stream: stream.ID, pid: stream.Peer.PID, node: stream.Node,
			unbound: map[string]*unbound{}, first: map[string]string{}}
	}
	return u.streams[stream.ID]
}

// add records a listener that cannot be bound. It reports whether the listener or its reason is
// new. Callers hold mu.
func (u *UnboundListeners) add(of *answers, name, reason string) (fresh bool) {
	r := u.listeners(of.node)[name]
	listener := &listenerv3.Listener{}
	if r == nil || proto.Unmarshal(r.EncodedMessage(), listener) != nil {
		return false // the listener was removed after it had been sent
	}
	one := of.unbound[name]
	if fresh = one == nil || one.reason != reason; one == nil {
		one = &unbound{}
		of.unbound[name] = one
	}
	one.address, one.by = listener.GetAddress().GetSocketAddress(), cause(r.Origins)
	one.reason, one.sent = reason, false
	return fresh
}

// cause returns the first origin of a listener, except EnvoyFilters, which only change listeners.
func cause(origins []resource.Origin) resource.Origin {
	for _, o := range origins {
		if o.Kind != "EnvoyFilter" {
			return o
		}
	}
	return resource.Origin{}
}

// listeners returns the current listeners of a node.
func (u *UnboundListeners) listeners(node *corev3.Node) map[string]*resource.Resource {
	feed, err := u.Source.Feed(node)
	if err != nil {
		return nil // Envoy does not receive listeners either
	}
	snapshot, _ := feed.Current()
	return snapshot.ByType(resource.ListenerType)
}

// OnAck records that a client accepted resources of a type.
func (u *UnboundListeners) OnAck(stream xds.Stream, typeURL string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if of := u.streams[stream.ID]; of != nil {
		delete(of.first, typeURL)
	}
}

// OnNackResolved records that a client has accepted listeners that it had refused.
func (u *UnboundListeners) OnNackResolved(stream xds.Stream, typeURL string, names []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	of := u.streams[stream.ID]
	if of == nil || typeURL != resource.ListenerType {
		return
	}
	maps.DeleteFunc(of.unbound, func(name string, _ *unbound) bool {
		return slices.Contains(names, name)
	})
	u.look()
}

// OnStreamEnd removes the state of a stream.
func (u *UnboundListeners) OnStreamEnd(stream xds.Stream) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.streams[stream.ID] != nil {
		delete(u.streams, stream.ID)
		u.look()
	}
}

// look triggers a check by Run. It does not block.
func (u *UnboundListeners) look() {
	select {
	case u.wake <- struct{}{}:
	default: // a check is already pending
	}
}

// counting returns the states of the live Envoy's streams, or of all streams while no Envoy is
// live. Callers hold mu.
func (u *UnboundListeners) counting() []*answers {
	pid, live := u.LiveEnvoy()
	var all []*answers
	for _, id := range slices.Sorted(maps.Keys(u.streams)) {
		if of := u.streams[id]; !live || int(of.pid) == pid {
			all = append(all, of)
		}
	}
	return all
}

// Problems returns a problem for each listener that the live Envoy cannot bind.
func (u *UnboundListeners) Problems() []discovery.Problem {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.problems)
}

// NotReadyReason returns why the live Envoy serves nothing of the mesh configuration, "" if it
// serves. The reason is that it could bind none of its listeners, or has refused its first
// listeners or clusters.
func (u *UnboundListeners) NotReadyReason() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, of := range u.counting() {
		for _, kind := range slices.Sorted(maps.Keys(of.first)) {
			return of.first[kind]
		}
		if u.bindsNone(of) {
			return "none of the listeners of the mesh configuration could be bound: " + of.sentence()
		}
	}
	return ""
}

// bindsNone reports whether the client of a stream could bind none of its listeners. Callers hold
// mu.
func (u *UnboundListeners) bindsNone(of *answers) bool {
	if len(of.unbound) == 0 {
		return false
	}
	for name, r := range u.listeners(of.node) {
		if of.unbound[name] != nil {
			continue
		}
		listener := &listenerv3.Listener{}
		if proto.Unmarshal(r.EncodedMessage(), listener) == nil && binds(listener) {
			return false
		}
	}
	return true
}

// sentence describes the listeners that a client could not bind, without the programs that occupy
// their addresses.
func (of *answers) sentence() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(of.unbound)) {
		one := of.unbound[name]
		all = append(all, fmt.Sprintf("%s (%s)", shown(one.address), one.reason))
	}
	if len(all) > maxShown {
		all = append(all[:maxShown], fmt.Sprintf("and %d more", len(all)-maxShown))
	}
	return strings.Join(all, ", ")
}

// Name returns the name of this component.
func (u *UnboundListeners) Name() string { return "mesh listeners" }

// Run reports listeners that Envoy cannot bind, and resends them once their addresses are free,
// until ctx ends.
func (u *UnboundListeners) Run(ctx context.Context) error {
	u.MarkReady()
	for {
		epochs := u.EpochsChanged()
		var again <-chan time.Time
		if u.check(ctx) {
			again = time.After(unboundPause)
		}
		select {
		case <-u.wake:
		case <-epochs:
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}
