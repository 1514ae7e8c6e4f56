package epoch

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

// Options configures a Supervisor. Admin, Board and Config are required. The functions may be
// called concurrently.
type Options struct {
	// Admin returns a client for an address that Spec.AdminAddress returned. It must not connect
	// yet.
	Admin  func(address string) Admin
	Board  *condition.Board
	Logger *slog.Logger // nil: slog.Default()
	// Config has the folder of envoy-rev<N>.json. Configure changes its restart_backoff_min,
	// restart_backoff_max, restart_limit and restart_window.
	Config config.Envoy

	// Explain describes the exit of a process; nil: its code or signal is stated.
	Explain func(code int, signal string, coreDump bool, lastLines []string) string
	// AwaitExit blocks until a process has exited, and returns false if ctx ends first; nil uses a
	// pidfd. It is only called while no keeper is connected, which otherwise reports exits.
	AwaitExit func(ctx context.Context, pid int) bool
	// Obstacle returns the reason why no Envoy can start at present, such as a port that another
	// program uses; nil: there is none.
	Obstacle func() error
}

// Bounds without a configuration key.
const (
	requestTimeout   = 3 * time.Second        // one request to the keeper
	validateTimeout  = 30 * time.Second       // 1000 listeners take half a second
	preflightHurry   = 500 * time.Millisecond // probe of the parent's admin before a hot restart
	preflightTimeout = time.Second            // the same probe after SIGCONT
	// wait for a parent's exit event if the keeper refuses its child
	parentNews = 50 * time.Millisecond
	// time for a child to become live after its parent has exited
	parentGrace = 300 * time.Millisecond

	pollFast    = 5 * time.Millisecond   // first interval of polls of a starting epoch, for
	pollFastFor = 3 * time.Second        // its first seconds
	pollSlow    = 100 * time.Millisecond // interval of polls after that

	handshakeTries       = 3                // attempts of a hot restart whose handshake fails
	handshakeTimeout     = 10 * time.Second // limit of the handshake of a hot restart
	handshakeTimeoutDown = 3 * time.Second  // the same limit when nobody serves

	// added to the time when a child should have ended its parent
	overdue          = 1500 * time.Millisecond
	terminateTimeout = 5 * time.Second // SIGTERM to SIGKILL
	abortTimeout     = time.Second     // from SIGTERM to SIGKILL when a stop is aborted
	killTimeout      = 5 * time.Second // SIGKILL to the exit
	acceptQueued     = time.Second     // limit of the wait until queued connections are accepted

	keeperPatience = 5 * time.Second // maximum duration of a keeper's re-execution
	// maximum time for which a restart of the last good spec delays requests
	provenFirst    = 2 * time.Second
	obstaclePause  = 3 * time.Second // between checks for an obstacle; longer than provenFirst
	forgetExits    = time.Minute     // a streak of exits ends after this
	repairInterval = time.Minute     // between attempts to replace an epoch without admin
	probeInterval  = 5 * time.Second // of the live epoch's admin
	probeTimeout   = 2 * time.Second
	probeMisses    = 3               // unanswered probes in a row until an epoch counts as silent
	drainTimeout   = 5 * time.Second // one request to drain

	// from the begin of an overlap to the first connection count
	countDelay  = 500 * time.Millisecond
	idleEvery   = 300 * time.Millisecond // between counts; longer than keeper.MaxMeasurementAge
	countEvery  = 500 * time.Millisecond // between counts during a stop
	countsQuiet = 2                      // zero counts in a row: a single one may miss a connection
	// time without a request in flight after which a stop's drain is complete
	quietFor      = time.Second
	adminRefusals = 10 // failed requests in a row after which the admin interface counts as closed
)

// withDefaults returns o with defaults for the optional fields that are not set.
func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Explain == nil {
		o.Explain = explain
	}
	if o.AwaitExit == nil {
		o.AwaitExit = awaitExit
	}
	if o.Obstacle == nil {
		o.Obstacle = func() error { return nil }
	}
	return o
}

func explain(code int, signal string, _ bool, _ []string) string {
	if signal != "" {
		return "ended by " + signal
	}
	return fmt.Sprintf("exited with code %d", code)
}
