package epoch

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

// Options configure a Supervisor. Admin, Board and Config are needed. The functions are called by
// several goroutines.
type Options struct {
	// Admin returns a client for an address that Spec.AdminAddress returned; it must not connect
	// yet.
	Admin  func(address string) Admin
	Board  *condition.Board
	Logger *slog.Logger // nil: slog.Default()
	// Config has the folder of envoy-rev<N>.json, and restart_backoff_min, restart_backoff_max,
	// restart_limit and restart_window, which Configure changes.
	Config config.Envoy

	// Explain describes how a process ended; nil: by its code or signal.
	Explain func(code int, signal string, coreDump bool, lastLines []string) string
	// AwaitExit blocks until a process has ended, and reports false if ctx ends first; nil uses a
	// pidfd. It is called while no keeper is connected, which would report the exit.
	AwaitExit func(ctx context.Context, pid int) bool
	// Obstacle returns why no Envoy could start now, such as a port in use by another program. nil
	// reports no obstacle.
	Obstacle func() error
}

// The bounds that the configuration does not set.
const (
	requestTimeout   = 3 * time.Second        // one request to the keeper
	validateTimeout  = 30 * time.Second       // 1000 listeners take half a second
	preflightHurry   = 500 * time.Millisecond // probe of the parent's admin before a hot restart
	preflightTimeout = time.Second            // the same probe after SIGCONT
	parentNews       = 50 * time.Millisecond  // for a parent's exit if the keeper refuses its child
	parentGrace      = 300 * time.Millisecond // for a child that lost its parent to become live

	pollFast    = 5 * time.Millisecond   // interval of polls of a starting epoch for
	pollFastFor = 3 * time.Second        // its first seconds
	pollSlow    = 100 * time.Millisecond // interval of polls after that

	handshakeTries       = 3                // attempts of a hot restart that fails in its handshake
	handshakeTimeout     = 10 * time.Second // limit of the handshake of a hot restart
	handshakeTimeoutDown = 3 * time.Second  // the same limit when nobody serves

	overdue          = 1500 * time.Millisecond // after the time when a child ends its parent
	terminateTimeout = 5 * time.Second         // SIGTERM to SIGKILL
	abortTimeout     = time.Second             // SIGTERM to SIGKILL when a stop is aborted
	killTimeout      = 5 * time.Second         // SIGKILL to the exit
	acceptQueued     = time.Second             // limit for accepting queued connections

	keeperPatience = 5 * time.Second // maximum time in which a keeper re-executes itself
	provenFirst    = 2 * time.Second // maximum wait of requests for a restart of the last good spec
	obstaclePause  = 3 * time.Second // between checks for an obstacle; above provenFirst
	forgetExits    = time.Minute     // a streak of exits ends after this
	repairInterval = time.Minute     // between attempts to replace an epoch without admin
	probeInterval  = 5 * time.Second // of the live epoch's admin
	probeTimeout   = 2 * time.Second
	probeMisses    = 3               // unanswered probes in a row make an epoch silent
	drainTimeout   = 5 * time.Second // one request to drain

	countDelay    = 500 * time.Millisecond // first count of connections in an overlap
	idleEvery     = 300 * time.Millisecond // between counts; longer than keeper.MeasurementAge
	countEvery    = 500 * time.Millisecond // between counts during a stop
	countsQuiet   = 2                      // in a row: a changing kernel table may lack a line
	quietFor      = time.Second            // without a request in flight a stop's drain is done
	adminRefusals = 10                     // unanswered requests in a row: the admin is gone
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
