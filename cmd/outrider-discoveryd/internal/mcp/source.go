// Package mcp reads configuration from another xDS server: an istiod, or an outrider-discoveryd.
// These serve their objects to clients with GENERATOR=api in their node. The protocol is ADS with a
// type URL for each kind (networking.istio.io/v1/VirtualService) and resources of type
// istio.mcp.v1alpha1.Resource. Istio calls it MCP over xDS.
//
// A stream begins with the complete list of each kind. The source delivers the lists together once
// all have arrived, and then the changes in each response:
//
//	connect ─> collect the lists of all kinds ─> reconcile (Complete) ─> apply responses ─> stream ends
package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"outrider.org/outrider/agent/backoff"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
)

// Options configures a Source.
type Options struct {
	Name    string // name of the source
	Address string // address of the server, HOST:PORT
	// file with the CA certificates that verify the server's certificate; "": the system's
	CAFile    string
	TokenFile string // file with a service account's token; "": none
	CertFile  string // file with the client certificate; "": none
	KeyFile   string
	// Plaintext makes the source connect without TLS. It is for servers on the loopback interface.
	Plaintext bool
	// ServicesOnly makes the source deliver only the services in the server's registries, instead
	// of the server's configuration.
	ServicesOnly bool
	Sink         source.Sink
	Logger       *slog.Logger
}

// Source delivers the configuration of an xDS server or, with Options.ServicesOnly, the services of
// its registries. It implements source.Source.
type Source struct {
	options Options
	accept  chan struct{} // a signal from RemoveRetainedInputs

	mu     sync.Mutex // guards status and failed
	status source.Status
	failed bool // a failure has been logged, and no later stream is complete yet

	objects *objects // objects of the server; only Run uses them
}

// New returns a source. Run connects to the server.
func New(options Options) (*Source, error) {
	if options.Address == "" {
		return nil, errors.New("mcp: the address of the xDS server is missing")
	}
	if options.Plaintext && options.TokenFile+options.CertFile != "" {
		return nil, errors.New("mcp: a token or client certificate requires TLS")
	}
	return &Source{options: options, accept: make(chan struct{}, 1),
		objects: newObjects(options)}, nil
}

// Name returns the name of the source.
func (s *Source) Name() string { return s.options.Name }

// Status returns the state of the source.
func (s *Source) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// RemoveRetainedInputs removes the objects that are retained although the lists of their types are
// empty.
func (s *Source) RemoveRetainedInputs() {
	select {
	case s.accept <- struct{}{}:
	default: // the channel has a signal already
	}
}

// Run maintains a stream to the server until the context ends, and returns nil. It uses incremental
// xDS, or the state of the world if the server does not support incremental xDS.
func (s *Source) Run(ctx context.Context) error {
	pause := backoff.Backoff{Min: 200 * time.Millisecond, Max: 10 * time.Second, Jitter: 0.2}
	for delta := true; ctx.Err() == nil; {
		delta = s.attempt(ctx, delta, &pause)
	}
	return nil
}

// attempt runs one stream and then waits for the back-off. It reports whether the next stream
// should be incremental.
func (s *Source) attempt(ctx context.Context, delta bool, pause *backoff.Backoff) bool {
	synced, err := s.serve(ctx, delta)
	switch {
	case ctx.Err() != nil:
		return delta
	case delta && isUnimplemented(err):
		return false
	case synced:
		pause.Reset()
	}
	s.disconnected(err)
	_ = pause.Wait(ctx) // an error means that ctx has ended, which Run checks
	return delta
}

// serve runs one stream. synced reports whether all lists have arrived.
func (s *Source) serve(ctx context.Context, delta bool) (synced bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	connection, err := s.dial()
	if err != nil {
		return false, err
	}
	defer func() { _ = connection.Close() }()
	st, err := open(ctx, connection, delta, s.options, s.objects.types())
	if err != nil {
		return false, err
	}
	received := make(chan response)
	ended := make(chan error, 1)
	var receiving sync.WaitGroup
	receiving.Go(func() { ended <- st.receive(ctx, received) })
	defer receiving.Wait()
	defer cancel()
	late := time.NewTimer(listTime)
	defer late.Stop()
	lists := s.objects.begin()
	for {
		select {
		case r := <-received:
			_ = st.acknowledge(r) // if the stream has failed, receive returns the cause
			batch, changed := lists.take(r)
			if lists.complete() && !synced {
				synced = true
				late.Stop()
			}
			if changed {
				s.options.Sink(batch)
			}
			s.connected(synced)
		case <-s.accept:
			if batch, changed := lists.acceptEmpty(); changed {
				s.options.Sink(batch)
			}
			s.connected(synced)
		case <-late.C:
			return false, fmt.Errorf("the server sent no complete list of %s within %v",
				lists.outstanding(), listTime)
		case err := <-ended:
			return synced, cmp.Or(err, errors.New("the server ended the stream"))
		}
	}
}

// listTime bounds the wait for the first lists of all kinds on a stream.
const listTime = time.Minute

// connected updates the status after a response. synced means that all lists have arrived.
func (s *Source) connected(synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if synced {
		if s.failed {
			s.options.Logger.Info("resumed reading configuration from xDS server",
				"source", s.options.Name)
			s.failed = false
		}
		s.status.Synced, s.status.Err = true, nil
	}
	s.status.LastContact = time.Now()
	s.status.Inputs = s.objects.count()
	if problem := s.objects.problem(); problem != s.status.Problem {
		if s.status.Problem = problem; problem != "" {
			s.options.Logger.Warn("cannot use a part of the configuration from xDS server",
				"source", s.options.Name, "problem", problem)
		}
	}
}

// disconnected updates the status after the end of a stream, and logs the first failure.
func (s *Source) disconnected(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.failed {
		s.failed = true
		s.options.Logger.Warn("cannot read configuration from xDS server", "source", s.options.Name,
			"error", err)
	}
	s.status.Err = err
}
