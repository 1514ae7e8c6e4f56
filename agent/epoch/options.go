package epoch

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
)

// Options configures a Supervisor. Admin, Conditions and Config are required. The functions may be
// called concurrently.
type Options struct {
	// Admin returns a client for an address that Spec.AdminAddress returned. It must not connect
	// before the client's first request.
	Admin      func(address string) Admin
	Conditions *condition.Registry
	Logger     *slog.Logger // nil: slog.Default()
	// Config names the folder of the bootstrap files (envoy-rev<N>.json). Supervisor.Configure
	// replaces restart_backoff_min, restart_backoff_max, restart_limit and restart_window.
	Config config.Envoy

	// ExplainExit describes the exit of a process; nil: the description is the exit code or signal.
	ExplainExit func(code int, signal string, coreDump bool, lastLines []string) string
	// AwaitExit blocks until a process has exited, and returns false if ctx ends first; nil: a
	// function that uses a pidfd. It is called only while no keeper is connected, because a keeper
	// reports exits.
	AwaitExit func(ctx context.Context, pid int) bool
	// StartObstacle returns the reason why no Envoy can start at present, such as a port that
	// another program uses; nil: there is none.
	StartObstacle func() error
}

// Bounds that the configuration cannot change.
const (
	requestTimeout = 3 * time.Second // limit of one request to the keeper
	// limit of one validation; 1,000 listeners take half a second
	validateTimeout = 30 * time.Second
	// limit of the probe of the parent's admin interface before a hot restart
	preflightHurry = 500 * time.Millisecond
	// limit of the probe of the parent's admin interface after SIGCONT
	preflightTimeout = time.Second
	// maximum wait for the parent's exit event if the keeper cannot start its child
	parentNews = 50 * time.Millisecond
	// time for a child to become live after its parent has exited
	parentGrace = 300 * time.Millisecond

	pollFast    = 5 * time.Millisecond   // interval of polls of a starting epoch during pollFastFor
	pollFastFor = 3 * time.Second        // time after which pollSlow replaces pollFast
	pollSlow    = 100 * time.Millisecond // interval of polls of a starting epoch after pollFastFor

	// maximum number of attempts of a hot restart whose handshake fails
	handshakeTries   = 3
	handshakeTimeout = 10 * time.Second // limit of the handshake of a hot restart
	// limit of the handshake of a hot restart while no epoch serves
	handshakeTimeoutDown = 3 * time.Second

	// delay after the time at which the child ends its parent, before the agent kills the parent
	overdue          = 1500 * time.Millisecond
	terminateTimeout = 5 * time.Second // from SIGTERM to SIGKILL
	abortTimeout     = time.Second     // time from SIGTERM to SIGKILL when a stop is aborted
	killTimeout      = 5 * time.Second // maximum time from SIGKILL to the exit
	acceptQueued     = time.Second     // limit of the wait until queued connections are accepted

	keeperPatience = 5 * time.Second // maximum duration of a keeper's re-execution
	// maximum time for which a restart of the last good spec delays requests
	provenFirst = 2 * time.Second
	// interval between checks whether something, such as a port in use, prevents a restart of
	// Envoy; longer than provenFirst
	obstaclePause = 3 * time.Second
	// exits that are further apart than this do not belong to the same streak
	forgetExits = time.Minute
	// interval between attempts to replace an epoch that has no admin interface
	repairInterval = time.Minute
	probeInterval  = 5 * time.Second // interval between probes of the live epoch's admin interface
	probeTimeout   = 2 * time.Second
	// unanswered probes in succession after which an epoch counts as silent
	probeMisses  = 3
	drainTimeout = 5 * time.Second // limit of one drain request

	// from the beginning of an overlap to the first connection count
	countDelay = 500 * time.Millisecond
	// interval of counts before a start; longer than keeper.MaxMeasurementAge
	idleEvery  = 300 * time.Millisecond
	countEvery = 500 * time.Millisecond // interval of counts during a stop
	// successive counts of zero that are required, because a single one may miss a connection
	countsQuiet = 2
	// time without a request in flight after which a stop regards the drain as complete
	quietFor = time.Second
	// failed requests in succession after which the admin interface counts as closed
	adminRefusals = 10
)

// withDefaults returns o with default values for optional fields that are not set.
func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.ExplainExit == nil {
		o.ExplainExit = explain
	}
	if o.AwaitExit == nil {
		o.AwaitExit = awaitExit
	}
	if o.StartObstacle == nil {
		o.StartObstacle = func() error { return nil }
	}
	return o
}

func explain(code int, signal string, _ bool, _ []string) string {
	if signal != "" {
		return "ended by " + signal
	}
	return fmt.Sprintf("exited with code %d", code)
}
