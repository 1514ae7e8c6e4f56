// Package web shows the resources and clients of a discovery server as HTML pages, as JSON and as
// metrics. Package monitoring controls the access.
//
//	streams, services, problems → snapshot (at most one a second) → answer (JSON) → page (HTML)
//
// A page is rendered from the redacted JSON of its answer, so both have the same content. It loads
// one style sheet and runs no script. Node IDs and error messages come from clients: they are
// shortened, and html/template escapes them.
package web

import (
	"context"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/xds"
)

// Options configures a Server. The functions must be safe for concurrent use.
type Options struct {
	Version string // version of this program
	// returns why clients are not served; nil: they are
	Ready func() error
	// returns an incomplete list if ctx ends
	Streams    func(ctx context.Context) []xds.StreamStatus
	Inventory  func() model.Inventory
	Problems   func() []discovery.Problem
	Conditions func() []condition.Condition
	Sources    func() []Source
}

// Source is the state of a source or registry.
type Source struct {
	Name        string    `json:"name"`
	Synced      bool      `json:"synced"`
	LastContact time.Time `json:"since,omitzero"` // time of the last successful contact
	Error       string    `json:"error,omitempty"`
	// number of objects or services delivered; 0 for files
	Inputs  int    `json:"inputs,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// Server serves the pages and their JSON, and collects metrics. It is safe for concurrent use.
type Server struct {
	options Options
	turn    chan struct{} // lock with a time-out: its holder makes a snapshot
	last    *snapshot     // last snapshot, guarded by turn; nil: none
	due     time.Time     // expiry of last, guarded by turn
}

// New returns a Server with the given options.
func New(options Options) *Server { return &Server{options: options, turn: make(chan struct{}, 1)} }

// snapshot is the state of the discovery server at one time. It is immutable.
type snapshot struct {
	at       time.Time
	hosts    []ConnectedHost
	services []*model.Service // sorted by host, then by namespace
	of       model.Inventory
	problems []discovery.Problem
	partial  bool // streams are missing, because they have not reported within snapshotTime
}

const (
	// bounds the wait for the streams' states; Prometheus' timeout is 10 s
	snapshotTime = 8 * time.Second
	snapshotAge  = time.Second // minimum time for which a snapshot is used
	// snapshotShare bounds the share of time spent on snapshots to 1/snapshotShare.
	snapshotShare = 10
)

// snapshot returns the last snapshot or, if that has expired, a new one. A snapshot expires after
// snapshotAge, or after snapshotShare times the time that it took, whichever is longer. It returns
// an error if ctx ends while another request makes a snapshot.
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
	// Other requests use the snapshot, too, so the end of this request does not cancel it.
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
