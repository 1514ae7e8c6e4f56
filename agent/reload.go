package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// reloader is the transaction of a reload: read the configuration, decide what the change needs,
// have an epoch started, put the configuration in force. A refusal at any step leaves everything
// after it unchanged.
//
// The goroutine of Run owns what is in force and never blocks. Steps that read files, request
// something of another part or apply settings run in helper goroutines, which post their result to
// the owner:
//
//	take → prepare* → decide → ask* → applied → settle* → finish      (*: a helper goroutine)
//
// Each request is prepared as it comes, so that a broken configuration is refused at once even
// while an older request waits. Of several requests the newest wins. Settings take effect in the
// order in which configurations are put in force: a request whose predecessor's settings are not
// yet in effect waits, and says so.
type reloader struct {
	source     specSource
	supervisor requester
	effects    effects
	board      *condition.Board
	log        *slog.Logger

	requests chan *reload
	posted   chan func()   // work for the owner
	ended    chan struct{} // closed when Run returns

	// The owner's.
	counter   uint64
	newest    *prepared   // the newest that was not refused when it was read
	committed *prepared   // in force; nil: what the agent started with
	asked     []*prepared // waiting for the supervisor
	refused   uint64      // id of the last reload that was refused
	settling  *settling   // the last work on effects that was begun
	following bool        // Follow runs or waits
	followed  string      // ID of the epoch that Follow was last called for

	mu       sync.Mutex
	current  *config.Loaded // in force
	started  *config.Config // as the agent started: the value of [start] keys
	last     *api.LastReload
	reported uint64             // number of reloads whose start was published
	pending  []string           // [start] keys that differ on disk
	phases   map[*reload]string // of reloads in progress
}

// specSource reads configurations and makes specs of them. Its methods may block.
type specSource interface {
	Load() (*config.Loaded, error)
	// Check returns why the host cannot provide what a configuration needs.
	Check(ctx context.Context, loaded *config.Loaded) error
	Make(ctx context.Context, loaded *config.Loaded, to listener) (*wanted, error)
	// Loses returns what the live epoch serves and a new one would not.
	Loses(ctx context.Context) error
}

// requester is the supervisor. Its methods do not block.
type requester interface {
	Ask(epoch.Request) (wait func(context.Context) (epoch.Result, error))
	Live() (epoch.Epoch, epoch.Admin, bool)
	Changed() <-chan struct{}
}

// effects are the other parts of the agent. The methods may block; step names what they wait for.
type effects interface {
	// Expect watches the files of a configuration that a reload is about to read, until Release.
	Expect(id uint64, loaded *config.Loaded, files []string)
	// Hold provides what the epoch of a reload needs of the agent, until Release.
	Hold(id uint64, read *prepared) error
	// Enact applies the [live] keys of the configuration that is now in force.
	Enact(ctx context.Context, old *config.Loaded, won *prepared, step func(name string))
	// Follow applies them to an epoch that became live without a reload.
	Follow(ctx context.Context, step func(name string))
	// Release ends what Expect and Hold began.
	Release(id uint64, refused bool)
}

// prepared is a configuration that was read for a reload, with the Envoy that it needs.
type prepared struct {
	id      uint64 // of the reload
	loaded  *config.Loaded
	pending []string // [start] keys that wait for the next start
	wanted  *wanted
	loses   error // what the live epoch serves and a new one would not; nil: nothing
	epoch   bool  // one was requested; the owner's
}

// reload is one request.
type reload struct {
	reason    string
	ifChanged bool
	first     bool     // the start of the agent: its configuration has just been read
	files     []string // that changed, where a change of a file is the reason
	progress  func(api.Progress)
	answer    chan api.ReloadResult // holds one
	accepted  chan uint64           // holds one: the id, once the request is accepted

	id     uint64
	began  time.Time
	read   *prepared      // for it, though a newer one may replace it; nil: unreadable
	before *config.Config // in force when it was decided what the change needs
	err    error          // why no epoch was requested; valid once answered
	quiet  bool           // without a known effect and not requested by anybody: not published
}

func newReloader(
	source specSource, supervisor requester, effects effects,
	board *condition.Board, log *slog.Logger, started *config.Loaded,
) *reloader {
	return &reloader{
		source: source, supervisor: supervisor, effects: effects, board: board, log: log,
		requests: make(chan *reload), posted: make(chan func()), ended: make(chan struct{}),
		current: started, started: started.Config, phases: map[*reload]string{},
	}
}

// Name is the part's name.
func (r *reloader) Name() string { return "reload" }

// Run serves requests until ctx ends. It does not wait for helpers, which may hang in a file
// system.
func (r *reloader) Run(ctx context.Context) error {
	defer close(r.ended)
	for {
		changed := r.supervisor.Changed() // before Live is read, so that no change is missed
		if len(r.asked) == 0 {            // else a live epoch may be that of a reload in progress
			r.follow(ctx)
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

// Reload requests a reload and waits for its outcome; the end of ctx ends only the waiting.
func (r *reloader) Reload(ctx context.Context, request *reload) (api.ReloadResult, error) {
	if err := r.submit(ctx, request); err != nil {
		return api.ReloadResult{}, err
	}
	select {
	case result := <-request.answer:
		return result, nil
	case <-r.ended:
		return api.ReloadResult{Outcome: api.OutcomeRefused, Reasons: []string{"the agent ends"}}, nil
	case <-ctx.Done():
		return api.ReloadResult{}, fmt.Errorf("the outcome of the reload is not known yet: %w",
			context.Cause(ctx))
	}
}

// Begin requests a reload and returns its id once it is accepted; its end is an event with that id.
func (r *reloader) Begin(ctx context.Context, request *reload) (uint64, error) {
	if err := r.submit(ctx, request); err != nil {
		return 0, err
	}
	select {
	case id := <-request.accepted:
		return id, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("the reload was not begun: %w", context.Cause(ctx))
	}
}

// submit passes a request to the owner.
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
		return fmt.Errorf("the reload was not begun: %w", context.Cause(ctx))
	}
}

// post runs the next step of a reload in the owner.
func (r *reloader) post(ctx context.Context, step func()) {
	select {
	case r.posted <- step:
	case <-ctx.Done():
	}
}

// Ping returns once the owner has run; for the watchdog.
func (r *reloader) Ping(ctx context.Context) error {
	select {
	case r.posted <- func() {}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// phaseOf returns the phase of a reload in progress.
func (r *reloader) phaseOf(request *reload) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phases[request]
}

// serves returns the digest and the number of the live epoch.
func (r *reloader) serves() (hash string, number int, live bool) {
	e, _, live := r.supervisor.Live()
	return e.Hash, e.Number, live
}

// InForce is the configuration in force.
func (r *reloader) InForce() *config.Loaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// pendingKeys are the [start] keys that a configuration changes: they wait for the next start.
func pendingKeys(started, next *config.Config) []string {
	var pending []string
	for _, change := range config.Compare(started, next) {
		if change.Effect == config.Start {
			pending = append(pending, change.Key)
		}
	}
	return pending
}

// reasons turns an error into sentences, one per problem.
func reasons(err error) []string {
	if list, ok := errors.AsType[config.Errors](err); ok {
		var all []string
		for _, one := range list {
			all = append(all, one.Error())
		}
		return all
	}
	if refused, ok := errors.AsType[*epoch.Refused](err); ok {
		return append([]string(nil), refused.Reasons...)
	}
	return []string{err.Error()}
}
