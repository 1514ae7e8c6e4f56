package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// The conditions of a reload.
const (
	conditionRefused = "configuration-refused"
	conditionPending = "restart-pending"
)

// reloader is the transaction of a reload: read the configuration → decide what the change needs → have an epoch made of
// it → put it in force. A refusal at any step leaves everything after it untouched.
//
// Its loop owns what is in force. Requests are read and checked as they come, so that a broken configuration is told at
// once even while an older epoch is still ending; the supervisor merges the epochs they ask for.
type reloader struct {
	load   func() (*config.Loaded, error)
	make   func(context.Context, *config.Loaded) (*wanted, error)
	apply  func(context.Context, epoch.Request) (epoch.Result, error)
	serves func() (hash string, number int, ok bool)     // the live epoch
	enact  func(old, now *config.Loaded, files []string) // puts the [live] keys of what is now in force into effect

	board *condition.Board
	log   *slog.Logger

	requests chan *reload
	finished chan func()

	// The loop's.
	counter   uint64
	committed uint64 // id of the reload that put what is in force there
	running   int    // reloads that wait for the supervisor

	mu      sync.Mutex
	current *config.Loaded // in force
	started *config.Config // as the agent started: what [start] keys still say
	last    *api.LastReload
	pending []string // [start] keys that differ on disk
	busy    bool
	phase   string // of the reload that told last
}

// reload is one request.
type reload struct {
	reason    string
	ifChanged bool
	first     bool     // the start of the agent: nothing is in force
	files     []string // that changed, where a file's change is the reason
	progress  func(api.Progress)
	answer    chan api.ReloadResult // holds one
	accepted  chan uint64           // holds one: the id, once the request is taken

	id    uint64
	began time.Time
	err   error // why no epoch was asked for; valid once answered
}

func newReloader(board *condition.Board, log *slog.Logger, started *config.Loaded) *reloader {
	return &reloader{board: board, log: log, requests: make(chan *reload), finished: make(chan func()), current: started, started: started.Config}
}

// Name is the part's name.
func (r *reloader) Name() string { return "reload" }

// Run serves requests until ctx ends.
func (r *reloader) Run(ctx context.Context) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	for {
		select {
		case request := <-r.requests:
			r.take(ctx, request, &waiting)
		case finish := <-r.finished:
			finish()
		case <-ctx.Done():
			return nil
		}
	}
}

// Reload asks for a reload and waits for its outcome; the end of ctx only ends the waiting.
func (r *reloader) Reload(ctx context.Context, request *reload) (api.ReloadResult, error) {
	if err := r.submit(ctx, request); err != nil {
		return api.ReloadResult{}, err
	}
	select {
	case result := <-request.answer:
		return result, nil
	case <-ctx.Done():
		return api.ReloadResult{}, fmt.Errorf("the outcome of the reload is not known yet: %w", context.Cause(ctx))
	}
}

// Begin asks for a reload and returns its id as soon as it is taken; its end is an event with that id.
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

// submit hands a request to the loop.
func (r *reloader) submit(ctx context.Context, request *reload) error {
	request.answer, request.accepted = make(chan api.ReloadResult, 1), make(chan uint64, 1)
	tell := request.progress
	request.progress = func(p api.Progress) {
		r.setPhase(request.reason, p)
		if tell != nil {
			tell(p)
		}
	}
	select {
	case r.requests <- request:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the reload was not begun: %w", context.Cause(ctx))
	}
}

// take reads the configuration and decides what it needs.
func (r *reloader) take(ctx context.Context, request *reload, waiting *sync.WaitGroup) {
	r.counter++
	request.id, request.began = r.counter, time.Now()
	request.accepted <- request.id
	others := r.running
	r.setRunning(+1)
	request.progress(api.Progress{Phase: "reading the configuration"})
	r.board.Publish(condition.Event{Kind: condition.KindReloadStarted, Sentence: "reload: " + request.reason,
		Fields: map[string]string{"id": strconv.FormatUint(request.id, 10), "reason": request.reason}})
	loaded, err := r.load()
	if err != nil {
		request.err = &ExitError{Code: ExitConfiguration, Err: err}
		r.refuse(request, reasons(err))
		return
	}
	pending := pendingKeys(r.started, loaded.Config)
	loaded.Config = config.Keep(r.started, loaded.Config)
	wanted, err := r.make(ctx, loaded)
	if err != nil {
		request.err = err
		r.refuse(request, reasons(err))
		return
	}
	current := r.inForce()
	result := api.ReloadResult{Files: request.files}
	for _, change := range config.Compare(current.Config, loaded.Config) {
		result.Changes = append(result.Changes, api.Change{Key: change.Key, Old: change.Old, New: change.New, Effect: change.Effect.String()})
	}
	hash, number, live := r.serves()
	always := loaded.Config.Reload.OnRequest == "always"
	// While another reload waits for its epoch, what is live is not what will be: the supervisor decides which one wins.
	if live && hash == wanted.spec.Hash && (request.ifChanged || !always) && !request.first && others == 0 {
		r.committed = request.id
		r.commit(loaded, pending, wanted.files)
		result.Outcome, result.Epoch, result.Previous = api.OutcomeUnchanged, &number, &number
		for _, change := range result.Changes {
			if change.Effect == config.Live.String() {
				result.Outcome = api.OutcomeApplied
			}
		}
		r.finish(request, result)
		return
	}
	if live {
		result.Previous = &number
	}
	request.progress(api.Progress{Phase: "starting a new epoch"})
	waiting.Go(func() {
		outcome, err := r.apply(ctx, epoch.Request{Spec: wanted.spec, Reason: request.reason, IfChanged: request.ifChanged || !always || request.first,
			OnWait: func(until time.Time, why string) { request.progress(api.Progress{Phase: why, Until: until}) }})
		finish := func() { r.applied(request, result, loaded, pending, wanted, outcome, err) }
		select {
		case r.finished <- finish:
		case <-ctx.Done():
			request.answer <- api.ReloadResult{Outcome: api.OutcomeRefused, Reasons: []string{"the agent ends"}}
		}
	})
}

// applied ends a reload that asked for an epoch.
func (r *reloader) applied(request *reload, result api.ReloadResult, loaded *config.Loaded, pending []string, wanted *wanted, outcome epoch.Result, err error) {
	if err != nil {
		r.refuse(request, reasons(err))
		return
	}
	if hash, _, ok := r.serves(); (!ok || hash == wanted.spec.Hash) && request.id > r.committed {
		r.committed = request.id
		r.commit(loaded, pending, wanted.files)
	} // else a newer configuration won; its own reload puts it in force, or has
	result.Epoch, result.Mode = &outcome.Epoch, string(outcome.Mode)
	result.Outcome = api.OutcomeRestarted
	switch {
	case outcome.Mode == epoch.Unchanged && len(result.Changes) > 0:
		result.Outcome = api.OutcomeApplied
	case outcome.Mode == epoch.Unchanged:
		result.Outcome = api.OutcomeUnchanged
	}
	if outcome.Previous >= 0 {
		result.Previous = &outcome.Previous
	}
	r.finish(request, result)
}

// commit puts a configuration in force.
func (r *reloader) commit(loaded *config.Loaded, pending, files []string) {
	r.mu.Lock()
	old := r.current
	r.current, r.pending = loaded, pending
	r.mu.Unlock()
	r.board.Clear(conditionRefused)
	if len(pending) > 0 {
		r.board.Raise(conditionPending, condition.Info, fmt.Sprintf("changed, but in force only after the next start of outriderd: %s", strings.Join(pending, ", ")))
	} else {
		r.board.Clear(conditionPending)
	}
	for _, warning := range loaded.Warnings {
		r.log.Warn("configuration", "warning", warning.Error())
	}
	r.enact(old, loaded, files)
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

func (r *reloader) refuse(request *reload, why []string) {
	_, number, live := r.serves()
	result := api.ReloadResult{ID: request.id, Outcome: api.OutcomeRefused, Reasons: why, Files: request.files, Duration: time.Since(request.began)}
	goesOn := "no epoch is live"
	if live {
		result.Epoch = &number
		goesOn = fmt.Sprintf("epoch %d goes on", number)
	}
	sentence := fmt.Sprintf("reload refused (%s): %s; %s", request.reason, strings.Join(why, "; "), goesOn)
	r.log.Error("reload refused", "event", condition.KindReloadRefused, "reason", request.reason, "why", strings.Join(why, "; "), "then", goesOn)
	r.board.Raise(conditionRefused, condition.Error, sentence)
	r.board.Publish(condition.Event{Kind: condition.KindReloadRefused, Epoch: result.Epoch, Sentence: sentence,
		Fields: map[string]string{"id": strconv.FormatUint(request.id, 10), "reasons": strings.Join(why, "\n")}})
	r.end(request, result)
}

func (r *reloader) finish(request *reload, result api.ReloadResult) {
	result.ID, result.Duration = request.id, time.Since(request.began)
	r.mu.Lock()
	result.Pending = r.pending
	r.mu.Unlock()
	r.log.Info("reload", "reason", request.reason, "outcome", string(result.Outcome), "epoch", describe(result), "took", result.Duration.Round(time.Millisecond).String())
	r.end(request, result)
}

func (r *reloader) end(request *reload, result api.ReloadResult) {
	r.setRunning(-1)
	r.mu.Lock()
	r.last = &api.LastReload{Time: time.Now(), Outcome: result.Outcome, Epoch: result.Epoch, Reasons: result.Reasons}
	r.mu.Unlock()
	r.board.Publish(condition.Event{Kind: condition.KindReloadFinished, Epoch: result.Epoch,
		Sentence: fmt.Sprintf("reload finished (%s): %s, %s", request.reason, result.Outcome, describe(result)),
		Fields: map[string]string{"id": strconv.FormatUint(request.id, 10), "outcome": string(result.Outcome), "pending": strings.Join(result.Pending, " "),
			"reasons": strings.Join(result.Reasons, "\n")}})
	request.answer <- result
}

// describe is "epoch 3 → 4", or what is known of it.
func describe(result api.ReloadResult) string {
	switch {
	case result.Epoch == nil:
		return "no epoch"
	case result.Previous == nil || *result.Previous == *result.Epoch:
		return fmt.Sprintf("epoch %d", *result.Epoch)
	default:
		return fmt.Sprintf("epoch %d → %d", *result.Previous, *result.Epoch)
	}
}

func (r *reloader) setRunning(by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running += by
	r.busy = r.running > 0
}

func (r *reloader) setPhase(reason string, p api.Progress) {
	phase := fmt.Sprintf("reloading (%s): %s", reason, p.Phase)
	if !p.Until.IsZero() {
		phase += ", until " + p.Until.Format(time.TimeOnly) + " at the latest"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = phase
}

// doing says what the reloads under way do.
func (r *reloader) doing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.phase
}

// beat returns once the loop of Run has turned.
func (r *reloader) beat(ctx context.Context) error {
	select {
	case r.finished <- func() {}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inForce is the configuration in force.
func (r *reloader) inForce() *config.Loaded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// standing is how reloads stand, for the status.
func (r *reloader) standing() (last *api.LastReload, pending []string, busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.pending, r.busy
}

// reasons turns an error into sentences, one per thing that is wrong.
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
