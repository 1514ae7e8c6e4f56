// Package dns is the DNS proxy: it answers for names of the mesh and forwards other queries to the
// host's resolvers.
//
//	UDP, TCP --> Server -- table (names of the mesh)
//	                   \-- forwarder -- cache, upstreams
//
// SetNames replaces the table, which is immutable. Before the first table, all queries fail,
// because an upstream would deny names of the mesh; on port 53 they are forwarded, as in Istio.
// Only this host may query. Encoded responses are cached by encoded query, so that most queries
// need not be decoded.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"outrider.org/outrider/agent/admission"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/fdstore"
	"outrider.org/outrider/agent/lifecycle"
)

// Options configures a Server.
type Options struct {
	Listen     string // host:port; 127.0.0.1 and localhost also stand for ::1
	Node       Node
	Settings   config.DNS // its upstream servers can change while the server runs
	Conditions *condition.Registry
	Logger     *slog.Logger
	// ResolvedHelperSocket is the socket of the helper that makes systemd-resolved send queries for
	// names of the mesh to this server; "": none.
	ResolvedHelperSocket string
	// Store keeps the sockets, and the connection to the helper, over a restart of the agent; may
	// be nil.
	Store *fdstore.Store

	// ResolvConf replaces the paths of the host's resolv.conf files in tests.
	ResolvConf []string
}

// Stats are counters since the start.
type Stats struct {
	NameTableAnswers, ForwardedQueries, CachedAnswers, RefusedQueries, FailedQueries uint64
}

// Server is the DNS proxy. It is ready once it listens, or has raised the condition that it cannot
// listen yet. Its methods are safe for concurrent use.
type Server struct {
	lifecycle.Readiness
	options  Options
	port     uint16
	local    localAddresses
	forwards *forwarder
	shared   chan struct{}   // slots for queries to upstreams, for any user
	slots    *admission.Pool // further slots, limited per user

	listening atomic.Bool
	table     atomic.Pointer[table] // nil: the names of the mesh are not known yet
	changed   chan struct{}         // receives an element after each change of the table
	first     chan struct{}         // closed when there is a table

	tableHits, forwarded, cached, refused, failed atomic.Uint64

	storedSockets, storedRoute []*os.File // stored by the agent before its restart

	mu        sync.Mutex // guards the following fields
	settings  config.DNS
	names     []Name
	known     bool // SetNames was called
	host      resolvers
	hostKnown bool // readHost was called
}

// New returns a server without names.
func New(options Options) *Server {
	if options.ResolvConf == nil {
		options.ResolvConf = []string{resolvConf, resolvedOwn}
	}
	s := &Server{options: options, settings: options.Settings,
		shared: make(chan struct{}, maxShared), slots: admission.NewPool(forwardLimits),
		forwards: newForwarder(options.Conditions), changed: make(chan struct{}, 1),
		first: make(chan struct{}), storedSockets: options.Store.Take(storedSockets)}
	// Without ResolvedHelperSocket, the stored connection to the helper is not taken, so that the
	// agent closes it, which ends the routing of domains.
	if options.ResolvedHelperSocket != "" {
		s.storedRoute = options.Store.Take(storedRoute)
	}
	if _, port, err := net.SplitHostPort(options.Listen); err == nil {
		number, _ := strconv.ParseUint(port, 10, 16)
		s.port = uint16(number)
	}
	return s
}

// Name returns the name of the component.
func (s *Server) Name() string { return "dns" }

// Serving reports whether the server listens and knows the names of the mesh.
func (s *Server) Serving() bool { return s.listening.Load() && s.table.Load() != nil }

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{NameTableAnswers: s.tableHits.Load(), ForwardedQueries: s.forwarded.Load(),
		CachedAnswers:  s.cached.Load(),
		RefusedQueries: s.refused.Load(), FailedQueries: s.failed.Load()}
}

// SetNames replaces the names of the mesh.
func (s *Server) SetNames(names []Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && reflect.DeepEqual(s.names, names) {
		return
	}
	if !s.known {
		defer close(s.first)
	}
	s.names, s.known = names, true
	s.rebuild()
}

// Configure applies new settings.
func (s *Server) Configure(settings config.DNS) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settings = settings
	s.apply()
}

// CloseStoredSockets makes systemd close the stored sockets and the connection to the helper. Call
// it after Run if the agent is not restarting.
func (s *Server) CloseStoredSockets() {
	if err := errors.Join(s.options.Store.Remove(storedSockets),
		s.options.Store.Remove(storedRoute)); err != nil {
		s.options.Logger.Warn("cannot remove the DNS proxy's sockets from systemd's file descriptor store",
			"error", err)
	}
}

// rebuild makes a table from the names. The caller holds mu.
func (s *Server) rebuild() {
	if s.known {
		s.table.Store(newTable(s.names, s.options.Node, s.host.search))
		s.forwards.forget() // a cached response may be for a name that is now in the mesh
		select {
		case s.changed <- struct{}{}:
		default: // a change is already pending
		}
	}
}

// apply selects the upstreams once those of the host are known. The caller holds mu.
func (s *Server) apply() {
	var addresses []string
	for _, text := range s.settings.Upstream {
		if address, err := netip.ParseAddr(text); err == nil {
			text = netip.AddrPortFrom(address, 53).String()
		}
		addresses = append(addresses, text)
	}
	if addresses == nil && !s.hostKnown {
		return
	}
	if addresses == nil {
		addresses = s.host.addresses
	}
	s.forwards.use(addresses, s.settings.Parallel)
}

// readHost reads the host's resolv.conf.
func (s *Server) readHost() {
	found, err := readResolvers(s.options.ResolvConf, func(a netip.AddrPort) bool {
		return a.Port() == s.port && s.local.has(a.Addr())
	})
	if err != nil {
		s.options.Logger.Warn("cannot read the host's resolvers", "error", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found.search != s.host.search {
		defer s.rebuild()
	}
	if !slices.Equal(found.addresses, s.host.addresses) {
		s.options.Logger.Info("host resolvers changed", "addresses", found.addresses)
	}
	s.host, s.hostKnown = found, true
	s.apply()
}

// firstTable is the maximum time after a restart for which the server waits for the names of the
// mesh before it answers queries. Most clients wait for five seconds.
const firstTable = 3 * time.Second

// Run serves until ctx ends. While the address cannot be bound, it raises a condition and retries
// every second. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	defer s.forwards.close()
	watcher, err := watchFiles(s.options.ResolvConf, s.options.Logger)
	if err != nil {
		return err
	}
	s.readHost()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error {
		for {
			select {
			case <-watcher.Changes():
				s.readHost()
			case <-ctx.Done():
				return nil
			}
		}
	})
	group.Go(func() error {
		sockets, again, err := s.bind(ctx)
		if err != nil {
			return nil //nolint:nilerr // ctx ended before the address could be bound
		}
		s.listening.Store(true)
		defer s.listening.Store(false)
		s.MarkReady()
		if s.options.ResolvedHelperSocket != "" {
			group.Go(func() error {
				s.route(ctx, sockets[0].udp.LocalAddr().(*net.UDPAddr).AddrPort())
				return nil
			})
		}
		// After a restart, wait for the names of the mesh before serving: clients wait meanwhile,
		// and must not receive errors for names that were known before.
		if again {
			s.store(ctx, sockets)
		}
		serving, end := context.WithCancel(context.WithoutCancel(ctx))
		group.Go(func() error {
			defer end() // after the sockets were stored, because then serve closes them
			if !again {
				s.store(ctx, sockets)
			}
			<-ctx.Done()
			return nil
		})
		return s.serve(serving, sockets)
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("serve DNS on %s: %w", s.options.Listen, err)
	}
	return nil
}
