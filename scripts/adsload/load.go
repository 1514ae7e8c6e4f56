// Package adsload generates xDS load: its clients request what an Envoy requests (clusters, their
// endpoints, listeners, their route configurations). They accept every response without decoding
// it, so that a measurement mainly shows the cost of the server.
package adsload

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
)

// Options configures a load.
type Options struct {
	// Targets are of the form "unix:///path" or "host:port". A client that loses its connection
	// continues at the next target, like an agent: it sends the versions of the resources that it
	// has (Delta only). With a single target, losing the connection is an error.
	Targets          []string
	AllAtFirstTarget bool // all clients start at the first target, instead of being distributed
	Clients          int  // number of clients, each with its own connection
	// Connecting is the number of clients that may connect at the same time; 0: no limit. Without a
	// limit, all clients of a fleet would compete for the CPUs of this host.
	Connecting int
	// TLS returns the TLS configuration of a client's connections; nil: no TLS.
	TLS   func(i int) *tls.Config
	Delta bool // incremental
	// Node returns a client's node; nil: sidecar~127.0.0.1~x<i>.ns~ns.svc.cluster.local, in
	// istiod's format.
	Node func(i int) *corev3.Node
	// SameNodeID means that all clients get the same resources, so that only one needs to parse the
	// names.
	SameNodeID bool
}

// Load is a set of running clients.
type Load struct {
	options   Options
	nameCache *nameCache
	cancel    context.CancelFunc
	group     *errgroup.Group
	slots     chan struct{} // of clients that connect; nil: any number
	failed    chan struct{} // closed when a client has failed
	fail      sync.Once

	mu       sync.Mutex
	fullIn   []time.Duration // per client, since its stream was opened; 0: not complete yet
	full     int
	allFull  chan struct{}
	received map[string]ReceivedCounts
	marks    map[*BytesWatch]struct{}
	moved    int // number of new connections with a response after a lost one
}

// ReceivedCounts counts the resources of a type that all clients received.
type ReceivedCounts struct{ Responses, Resources, Removed, Bytes int }

// maxMessage limits a response, in bytes. It suffices for a state-of-the-world response with many
// thousands of resources.
const maxMessage = 1 << 30

// Start connects the clients.
func Start(ctx context.Context, options Options) (*Load, error) {
	if options.Node == nil {
		options.Node = func(i int) *corev3.Node {
			return &corev3.Node{Id: "sidecar~127.0.0.1~x" + strconv.Itoa(i) +
				".ns~ns.svc.cluster.local", Cluster: "adsload"}
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	l := &Load{
		options: options, cancel: cancel, group: group, failed: make(chan struct{}),
		fullIn: make([]time.Duration, options.Clients), allFull: make(chan struct{}),
		received: map[string]ReceivedCounts{}, marks: map[*BytesWatch]struct{}{},
	}
	if options.Connecting > 0 {
		l.slots = make(chan struct{}, options.Connecting)
	}
	if options.SameNodeID {
		l.nameCache = &nameCache{known: map[string][]string{}}
	}
	for i := range options.Clients {
		c := &client{load: l, index: i, wanted: map[string][]string{}, missing: map[string]int{}}
		if options.SameNodeID {
			c.versions = &l.nameCache.versions
		} else {
			c.versions = &versions{}
		}
		group.Go(func() error {
			if err := c.runEach(ctx); ctx.Err() == nil {
				l.fail.Do(func() { close(l.failed) })
				return err
			}
			return nil // Stop ended it
		})
	}
	return l, nil
}

// connecting waits until a client may connect, and returns a function to call once it is connected.
func (l *Load) connecting() (connected func()) {
	if l.slots == nil {
		return func() {}
	}
	l.slots <- struct{}{}
	return sync.OnceFunc(func() { <-l.slots })
}

// Stop ends the clients and returns the first error of a client.
func (l *Load) Stop() error {
	l.cancel()
	return l.group.Wait()
}

// WaitFull waits until every client has received everything, and returns the time that each needed
// since its stream was opened.
func (l *Load) WaitFull(ctx context.Context) ([]time.Duration, error) {
	select {
	case <-l.allFull:
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Clone(l.fullIn), nil
	case <-l.failed:
		return nil, l.group.Wait()
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		return nil, fmt.Errorf("%d of %d clients have everything: %w", l.full, l.options.Clients,
			ctx.Err())
	}
}

func (l *Load) isFull(client int, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fullIn[client] = took
	if l.full++; l.full == l.options.Clients {
		close(l.allFull)
	}
}

// MovedClients returns the number of times that clients have continued on another connection.
func (l *Load) MovedClients() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// Received returns the counts of all clients so far, by type.
func (l *Load) Received() map[string]ReceivedCounts {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]ReceivedCounts, len(l.received))
	for typeURL, r := range l.received {
		all[typeURL] = r
	}
	return all
}

func (l *Load) count(client int, r Response, moved bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if moved {
		l.moved++
	}
	sum := l.received[r.TypeURL]
	sum.Responses++
	sum.Resources += r.Resources
	sum.Removed += r.Removed
	sum.Bytes += r.Bytes
	l.received[r.TypeURL] = sum
	for mark := range l.marks {
		mark.see(client, r, now)
	}
}

// BytesWatch waits until every client, or a certain one, has received some bytes.
type BytesWatch struct {
	load    *Load
	only    int // client; -1: every one
	typeURL string
	bytes   []byte
	at      []time.Time
	seen    int
	reached chan struct{}
}

// WatchBytes watches the responses of a type for bytes, for example for the address of a changed
// endpoint. Call it before the change.
func (l *Load) WatchBytes(typeURL string, bytes []byte) *BytesWatch {
	return l.mark(-1, typeURL, bytes)
}

// WatchBytesAt is WatchBytes for one client.
func (l *Load) WatchBytesAt(client int, typeURL string, bytes []byte) *BytesWatch {
	return l.mark(client, typeURL, bytes)
}

func (l *Load) mark(only int, typeURL string, bytes []byte) *BytesWatch {
	m := &BytesWatch{load: l, only: only, typeURL: typeURL, bytes: bytes,
		at: make([]time.Time, l.options.Clients), reached: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks[m] = struct{}{}
	return m
}

// see records a response. Callers hold load.mu.
func (m *BytesWatch) see(client int, r Response, now time.Time) {
	if r.TypeURL != m.typeURL || !m.at[client].IsZero() || !r.Contains(m.bytes) {
		return
	}
	m.at[client] = now
	if m.seen++; m.seen == len(m.at) || client == m.only {
		delete(m.load.marks, m)
		close(m.reached)
	}
}

// Wait returns when each client received the bytes; zero for clients that it does not wait for.
func (m *BytesWatch) Wait(ctx context.Context) ([]time.Time, error) {
	select {
	case <-m.reached:
		return m.at, nil
	case <-m.load.failed:
		return nil, m.load.group.Wait()
	case <-ctx.Done():
		m.load.mu.Lock()
		defer m.load.mu.Unlock()
		delete(m.load.marks, m)
		return nil, fmt.Errorf("the change came to %d of %d clients: %w", m.seen, len(m.at),
			ctx.Err())
	}
}
