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
	// MaxConnecting is the number of clients that may connect at the same time; 0: no limit.
	// Without a limit, all clients of a fleet would compete for the CPUs of this host.
	MaxConnecting int
	// TLS returns the TLS configuration of a client's connections; nil: no TLS.
	TLS   func(i int) *tls.Config
	Delta bool // use incremental (delta) xDS
	// Node returns the node of client i; nil: sidecar~127.0.0.1~x<i>.ns~ns.svc.cluster.local, in
	// istiod's format.
	Node func(i int) *corev3.Node
	// SameNodeID states that all clients receive the same resources, so that only one client needs
	// to parse the names in them.
	SameNodeID bool
}

// Load is a set of running clients.
type Load struct {
	options   Options
	nameCache *nameCache
	cancel    context.CancelFunc
	group     *errgroup.Group
	slots     chan struct{} // has one element per client that is connecting; nil: no limit
	failed    chan struct{} // closed when a client has failed
	fail      sync.Once

	mu sync.Mutex
	// for each client, the time from opening its stream until it had received everything; 0: not
	// yet
	fullIn   []time.Duration
	full     int
	allFull  chan struct{}
	received map[string]ReceivedCounts
	marks    map[*ContentWatch]struct{}
	moved    int // number of connections that replaced a lost one and had a response
}

// ReceivedCounts are the numbers of responses, resources and bytes of one type that all clients
// together have received.
type ReceivedCounts struct{ Responses, Resources, Removed, Bytes int }

// maxMessage limits the size of a response in bytes. It suffices for a state-of-the-world response
// with many thousands of resources.
const maxMessage = 1 << 30

// Start starts the clients and returns without waiting until they are connected.
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
		received: map[string]ReceivedCounts{}, marks: map[*ContentWatch]struct{}{},
	}
	if options.MaxConnecting > 0 {
		l.slots = make(chan struct{}, options.MaxConnecting)
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
			return nil // the client ended because of Stop or another client's failure
		})
	}
	return l, nil
}

// connecting waits until a client may connect, and returns a function to call when it is connected.
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

// WaitInitialResources waits until every client has received everything that it requested. It
// returns, for each client, the time that this took from opening the stream.
func (l *Load) WaitInitialResources(ctx context.Context) ([]time.Duration, error) {
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
		return nil, fmt.Errorf("only %d of %d clients have received all resources: %w", l.full,
			l.options.Clients, ctx.Err())
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

// ReconnectCount returns how often clients have continued on another connection.
func (l *Load) ReconnectCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// Received returns what all clients have received so far, by type.
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

// ContentWatch records when every client, or one of them, receives a response that contains some
// bytes.
type ContentWatch struct {
	load    *Load
	only    int // index of the client to wait for; -1: every client
	typeURL string
	bytes   []byte
	at      []time.Time
	seen    int
	reached chan struct{}
}

// WatchContent returns a watch for responses of a type that contain bytes, such as the address of a
// changed endpoint. It must be called before the change.
func (l *Load) WatchContent(typeURL string, bytes []byte) *ContentWatch {
	return l.mark(-1, typeURL, bytes)
}

// WatchContentAtClient is like WatchContent for a single client.
func (l *Load) WatchContentAtClient(client int, typeURL string, bytes []byte) *ContentWatch {
	return l.mark(client, typeURL, bytes)
}

func (l *Load) mark(only int, typeURL string, bytes []byte) *ContentWatch {
	m := &ContentWatch{load: l, only: only, typeURL: typeURL, bytes: bytes,
		at: make([]time.Time, l.options.Clients), reached: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marks[m] = struct{}{}
	return m
}

// see records the time if a response contains the bytes. Callers hold load.mu.
func (m *ContentWatch) see(client int, r Response, now time.Time) {
	if r.TypeURL != m.typeURL || !m.at[client].IsZero() || !r.contains(m.bytes) {
		return
	}
	m.at[client] = now
	if m.seen++; m.seen == len(m.at) || client == m.only {
		delete(m.load.marks, m)
		close(m.reached)
	}
}

// Wait waits for the bytes, and returns the time at which each client received them; zero for
// clients for which it does not wait.
func (m *ContentWatch) Wait(ctx context.Context) ([]time.Time, error) {
	select {
	case <-m.reached:
		return m.at, nil
	case <-m.load.failed:
		return nil, m.load.group.Wait()
	case <-ctx.Done():
		m.load.mu.Lock()
		defer m.load.mu.Unlock()
		delete(m.load.marks, m)
		return nil, fmt.Errorf("only %d of %d clients have received the change: %w", m.seen,
			len(m.at), ctx.Err())
	}
}
