// Package web shows the resources and clients of a discovery server: as pages for a browser, as
// JSON and as metrics. Package monitoring controls access.
//
//	streams, services, problems → snapshot (at most one a second) → answer (JSON) → page (HTML)
//
// A page is rendered from the redacted JSON of the same answer, so that both have the same content.
// It loads one style sheet and runs no script. Node IDs and error messages come from clients: they
// are shortened, and html/template escapes them.
package web

import (
	"context"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/xds"
)

// Options configures a Server. The functions are safe for concurrent use.
type Options struct {
	Version    string                                       // version of this program
	Ready      func() error                                 // why clients are not served; nil: they are
	Streams    func(ctx context.Context) []xds.StreamStatus // may return fewer streams when ctx ends
	Inventory  func() model.Inventory
	Problems   func() []discovery.Problem
	Conditions func() []condition.Condition
	Sources    func() []Source
}

// Source is the state of a source or registry.
type Source struct {
	Name    string    `json:"name"`
	Synced  bool      `json:"synced"`
	Since   time.Time `json:"since,omitzero"` // last successful contact
	Error   string    `json:"error,omitempty"`
	Inputs  int       `json:"inputs,omitempty"` // number of inputs; 0 for files
	Problem string    `json:"problem,omitempty"`
}

// Server answers requests for pages and JSON, and collects metrics. It is safe for concurrent use.
type Server struct {
	options Options
	turn    chan struct{} // holds the slot of the snapshot that is being made
	last    *snapshot     // guarded by turn; nil: none was made
	due     time.Time     // guarded by turn; when last expires
}

// New returns a Server with the given options.
func New(options Options) *Server { return &Server{options: options, turn: make(chan struct{}, 1)} }

// snapshot is the state of the program at one time. It is immutable.
type snapshot struct {
	at       time.Time
	hosts    []Host
	services []*model.Service // sorted by host, then by namespace
	of       model.Inventory
	problems []discovery.Problem
	partial  bool // some hosts have not reported within snapshotTime
}

const (
	snapshotTime = 8 * time.Second // bounds the wait for streams; Prometheus waits for ten seconds
	snapshotAge  = time.Second     // snapshots are not made more often
	// snapshotShare bounds the time spent on snapshots to 1/snapshotShare of the total.
	snapshotShare = 10
)

// snapshot returns a state that is at most snapshotAge old, or snapshotShare times as old as it
// took to read it. It fails if ctx ends before the slot is free.
func (s *Server) snapshot(ctx context.Context) (*snapshot, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	started := time.Now()
	if s.last != nil && started.Before(s.due) {
		return s.last, nil
	}
	// the snapshot is for all requests, so it continues if this client disconnects
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), snapshotTime)
	defer cancel()
	now := &snapshot{at: started, hosts: hosts(s.options.Streams(ctx))}
	now.partial = ctx.Err() != nil
	now.of, now.problems = s.options.Inventory(), s.options.Problems()
	now.services = sortServices(now.of.Services)
	ended := time.Now()
	s.last, s.due = now, ended.Add(max(snapshotAge, snapshotShare*ended.Sub(started)))
	return now, nil
}
