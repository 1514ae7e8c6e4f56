package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/lifecycle"
)

// reloader runs a reload as one transaction: read the configuration, determine whether the change
// needs a new epoch, request one, commit the configuration. After a refusal at any step, the later
// steps do not run, and the configuration in force remains.
//
// The goroutine of Run, the owner, holds the configuration in force and never blocks. Steps that
// read files, call other components or apply settings run in helper goroutines, which post their
// results to the owner:
//
//	take → prepare* → decide → submit* → applied → queue* → finish  (*: a helper goroutine)
//
// Requests are prepared concurrently, so an invalid configuration is refused at once even while an
// older request waits. Of several requests, the configuration of the newest remains in force.
// Settings take effect in the order of the commits; a request that waits for the settings of an
// earlier one reports that in its progress.
type reloader struct {
	lifecycle.Readiness
	*reloadState
	source     specSource
	supervisor requester
	effects    effects
	board      *condition.Registry
	log        *slog.Logger

	requests chan *reload
	posted   chan func()   // functions for the goroutine of Run to call
	ended    chan struct{} // closed when Run returns

	// Only the goroutine of Run accesses the following fields.
	counter   uint64
	newest    *prepared   // newest configuration that was prepared without an error
	committed *prepared   // configuration in force; nil: that with which the agent started
	requested []*prepared // configurations of reloads that wait for the supervisor
	refused   uint64      // highest id of a refused reload
	queued    *queuedWork // last call of queue
	adjusting bool        // a call of AdjustEpoch is queued or running
	adjusted  string      // ID of the epoch for which AdjustEpoch was last called
}

// specSource reads configurations and makes the specs of their epochs. Its methods may block.
type specSource interface {
	Load() (*config.Loaded, error)
	// Check returns an error that says why the host cannot provide what a configuration needs.
	Check(ctx context.Context, loaded *config.Loaded) error
	Make(ctx context.Context, loaded *config.Loaded, to listener) (*wanted, error)
	// LostCertificates returns an error that lists the certificates which the live epoch has in
	// memory but a new epoch could not read from their files.
	LostCertificates(ctx context.Context) error
}

// requester is the part of the supervisor that the reloader needs. Its methods do not block.
type requester interface {
	Submit(epoch.Request) (wait func(context.Context) (epoch.Result, error))
	Live() (epoch.Epoch, epoch.Admin, bool)
	Changed() <-chan struct{}
}

// effects applies configurations to the other components of the agent. The methods may block.
// Before each wait they call step with the name of the component that they wait for.
type effects interface {
	// Expect watches the files of a configuration that a reload is about to read, until Release is
	// called for the reload. It does nothing once ctx has ended. A caller that may still call
	// Expect after Release must end ctx first.
	Expect(ctx context.Context, id uint64, loaded *config.Loaded, files []string)
	// Hold provides the sockets and ports of the agent that the epoch of a reload needs, until
	// Release is called for the reload.
	Hold(id uint64, read *prepared) error
	// Enact applies the keys that need no new epoch (effect live) of the configuration that is now
	// in force.
	Enact(ctx context.Context, old *config.Loaded, won *prepared, step func(name string))
	// AdjustEpoch applies the keys that need no new epoch (effect live) to an epoch that became
	// live without a reload.
	AdjustEpoch(ctx context.Context, step func(name string))
	// Release ends the watches and frees the sockets and ports of Expect and Hold.
	Release(id uint64, refused bool)
}

// prepared is a configuration read for a reload, with the spec of its Envoy.
type prepared struct {
	id      uint64 // of the reload
	loaded  *config.Loaded
	pending []string // changed keys that take effect at the next start of the agent
	wanted  *wanted
	loses   error // result of specSource.LostCertificates
	epoch   bool  // an epoch was requested; only the goroutine of Run accesses it
	first   bool  // made for the start of the agent
}

// reload is one request.
type reload struct {
	reason    string
	ifChanged bool
	abort     []int    // draining epochs to kill, so that the new epoch need not wait for them
	first     bool     // made by the start of the agent, which has just read the configuration
	files     []string // changed files that triggered the reload
	progress  func(api.Progress)
	answer    chan api.ReloadResult // buffered; receives one result
	accepted  chan uint64           // buffered; receives the ID once the request is accepted

	id     uint64
	began  time.Time
	read   *prepared      // configuration read for this request; nil: none yet, or it was invalid
	before *config.Config // configuration in force when decide was called
	err    error          // why no epoch was requested; valid after the answer
	quiet  bool           // start not published: a changed file triggered it, without effect so far
}

func newReloader(
	source specSource, supervisor requester, effects effects,
	board *condition.Registry, log *slog.Logger, state *reloadState,
) *reloader {
	return &reloader{
		reloadState: state, source: source, supervisor: supervisor, effects: effects, board: board,
		log:      log,
		requests: make(chan *reload), posted: make(chan func()), ended: make(chan struct{}),
	}
}

// Name returns the component's name.
func (r *reloader) Name() string { return "reload" }

// Run serves requests until ctx ends. It does not wait for helper goroutines, which may be blocked
// by a file system that hangs.
func (r *reloader) Run(ctx context.Context) error {
	defer close(r.ended)
	r.MarkReady()
	for {
		changed := r.supervisor.Changed() // before adjustEpoch calls Live, to miss no change
		if len(r.requested) == 0 {        // a reload in progress would adjust the epoch
			r.adjustEpoch(ctx)
		}
		select {
		case <-changed:
		case request := <-r.requests:
			r.take(ctx, request)
		case work := <-r.posted:
			work()
		case <-ctx.Done():
			return nil
		}
	}
}

// Reload requests a reload and waits for its outcome. If ctx ends, Reload returns an error and the
// reload continues. progress may be nil.
func (r *reloader) Reload(
	ctx context.Context, reason string, request api.ReloadRequest, progress func(api.Progress),
) (api.ReloadResult, error) {
	return r.do(ctx, &reload{reason: reason, ifChanged: request.IfChanged,
		abort:    request.AbortEpochs,
		progress: progress})
}

// do submits a request and waits for its outcome.
func (r *reloader) do(ctx context.Context, request *reload) (api.ReloadResult, error) {
	if err := r.submit(ctx, request); err != nil {
		return api.ReloadResult{}, err
	}
	select {
	case result := <-request.answer:
		return result, nil
	case <-r.ended:
		return api.ReloadResult{Outcome: api.OutcomeRefused, Reasons: []string{"the agent is stopping"}},
			nil
	case <-ctx.Done():
		return api.ReloadResult{}, fmt.Errorf("the outcome of the reload is not known yet: %w",
			context.Cause(ctx))
	}
}

// Begin requests a reload and returns its ID once the goroutine of Run has accepted the request. An
// event with that ID reports the end of the reload.
func (r *reloader) Begin(ctx context.Context, reason string, ifChanged bool) (uint64, error) {
	request := &reload{reason: reason, ifChanged: ifChanged}
	if err := r.submit(ctx, request); err != nil {
		return 0, err
	}
	select {
	case id := <-request.accepted:
		return id, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("the reload was not started: %w", context.Cause(ctx))
	}
}

// submit passes a request to the goroutine of Run.
func (r *reloader) submit(ctx context.Context, request *reload) error {
	request.answer, request.accepted = make(chan api.ReloadResult, 1), make(chan uint64, 1)
	progress := request.progress
	request.progress = func(p api.Progress) {
		r.setPhase(request, p)
		if progress != nil {
			progress(p)
		}
	}
	select {
	case r.requests <- request:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the reload was not started: %w", context.Cause(ctx))
	}
}

// post makes the goroutine of Run call step, the next step of a reload.
func (r *reloader) post(ctx context.Context, step func()) {
	select {
	case r.posted <- step:
	case <-ctx.Done():
	}
}

// Ping returns once the goroutine of Run has responded, so that systemd's watchdog detects that it
// hangs.
func (r *reloader) Ping(ctx context.Context) error {
	select {
	case r.posted <- func() {}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serves returns the spec hash and the number of the live epoch.
func (r *reloader) serves() (hash string, number int, live bool) {
	e, _, live := r.supervisor.Live()
	return e.SpecDigest, e.Number, live
}

// pendingKeys returns the keys with effect start whose values in next differ from those in started.
// They take effect at the next start of the agent.
func pendingKeys(started, next *config.Config) []string {
	var pending []string
	for _, change := range config.Compare(started, next) {
		if change.Effect == config.Start {
			pending = append(pending, change.Key)
		}
	}
	return pending
}

// reasons splits an error into sentences, one per problem.
func reasons(err error) []string {
	if refused, ok := errors.AsType[*epoch.AttemptError](err); ok {
		return append([]string(nil), refused.Reasons...)
	}
	return config.ErrorLines(err)
}
