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

// reloader is the transaction of a reload: read the configuration → decide what the change needs → have an epoch made of
// it → put it in force. A refusal at any step leaves everything after it untouched.
//
// Its loop owns what is in force and never waits: configurations are read beside it, each as its request comes, so that a
// broken one is told at once even while an older epoch is still ending or a resolver hangs; the supervisor merges the
// epochs they ask for. Of several, the one that was asked for last counts.
type reloader struct {
	load   func() (*config.Loaded, error)
	check  func(loaded *config.Loaded) error // that what it asks for can be had
	make   func(ctx context.Context, loaded *config.Loaded, to listener) (*wanted, error)
	ask    func(epoch.Request) (wait func(context.Context) (epoch.Result, error)) // for an epoch; of several, the one asked for last counts
	serves func() (hash string, number int, ok bool)                              // the live epoch
	hold   func(id uint64, read *prepared) error                                  // has there what the epoch needs of the agent, until over
	enact  func(old *config.Loaded, won *prepared)                                // puts the [live] keys of what is now in force into effect
	loses  func(ctx context.Context) error                                        // what the live epoch serves and a new one would not
	expect func(id uint64, loaded *config.Loaded, files []string)                 // has watched what a reload is about to read
	over   func(id uint64, refused bool)                                          // ends what expect and hold began

	changed func() <-chan struct{} // closed when the live epoch may be another one
	follow  func()                 // has an epoch that got live by itself as what is in force asks for

	board *condition.Board
	log   *slog.Logger

	requests chan *reload
	finished chan func()

	// The loop's.
	counter   uint64
	newest    *prepared   // of those that were not refused when they were read, the one asked for last
	committed *prepared   // that is in force; nil: what the agent started with
	asked     []*prepared // whose reloads wait for the supervisor
	refused   uint64      // id of the last reload that was refused

	mu      sync.Mutex
	current *config.Loaded // in force
	started *config.Config // as the agent started: what [start] keys still say
	last    *api.LastReload
	told    uint64             // how many reloads were told to begin
	pending []string           // [start] keys that differ on disk
	phases  map[*reload]string // what the reloads under way do
}

// prepared is a configuration that was read for a reload, with the Envoy that it asks for.
type prepared struct {
	id      uint64 // of the reload
	loaded  *config.Loaded
	pending []string // [start] keys that wait for the next start
	wanted  *wanted
	loses   error // what the live epoch serves and a new one would not; nil: nothing
	epoch   bool  // one was asked for; the loop's
}

// reload is one request.
type reload struct {
	reason    string
	ifChanged bool
	first     bool     // the start of the agent: its configuration has just been read
	files     []string // that changed, where a file's change is the reason
	progress  func(api.Progress)
	answer    chan api.ReloadResult // holds one
	accepted  chan uint64           // holds one: the id, once the request is taken

	id     uint64
	began  time.Time
	read   *prepared      // for it, though a newer one may take its place; nil: it could not be
	before *config.Config // in force when it was decided what the change needs
	err    error          // why no epoch was asked for; valid once answered
	quiet  bool           // nobody asked for it, and it is not known to have an effect: nobody is told of it
}

func newReloader(board *condition.Board, log *slog.Logger, started *config.Loaded) *reloader {
	return &reloader{board: board, log: log, requests: make(chan *reload), finished: make(chan func()),
		current: started, started: started.Config, phases: map[*reload]string{},
		hold:   func(uint64, *prepared) error { return nil },
		loses:  func(context.Context) error { return nil },
		expect: func(uint64, *config.Loaded, []string) {}, over: func(uint64, bool) {},
		changed: func() <-chan struct{} { return nil }, follow: func() {}}
}

// Name is the part's name.
func (r *reloader) Name() string { return "reload" }

// Run serves requests until ctx ends.
func (r *reloader) Run(ctx context.Context) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	for {
		changed := r.changed() // before the look: nothing is missed
		if len(r.asked) == 0 { // else a reload's epoch may be live whose configuration is not in force yet
			r.follow()
		}
		select {
		case <-changed:
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
		r.setPhase(request, p)
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
	r.refused = max(r.refused, request.id)
	r.acts(request)
	_, number, live := r.serves()
	result := api.ReloadResult{ID: request.id, Outcome: api.OutcomeRefused, Reasons: why, Files: request.files, Duration: time.Since(request.began)}
	goesOn := "no epoch is live"
	if live {
		result.Epoch = &number
		goesOn = fmt.Sprintf("epoch %d goes on", number)
	}
	sentence := fmt.Sprintf("reload refused (%s): %s; %s", request.reason, strings.Join(why, "; "), goesOn)
	r.log.Error(sentence, "event", condition.KindReloadRefused)
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
	level := slog.LevelInfo
	if result.Outcome == api.OutcomeRestarted {
		level = slog.LevelDebug // the new epoch says why it was started, and that it is live
	}
	r.log.Log(context.Background(), level, "reload", "reason", request.reason, "outcome", string(result.Outcome),
		"epoch", describe(result), "took", result.Duration.Round(time.Millisecond).String())
	r.end(request, result)
}

func (r *reloader) end(request *reload, result api.ReloadResult) {
	r.mu.Lock()
	delete(r.phases, request)
	r.last = &api.LastReload{Time: time.Now(), Outcome: result.Outcome, Epoch: result.Epoch, Reasons: result.Reasons}
	quiet := request.quiet
	r.mu.Unlock()
	r.over(request.id, result.Outcome == api.OutcomeRefused)
	if !quiet {
		r.board.Publish(condition.Event{Kind: condition.KindReloadFinished, Epoch: result.Epoch,
			Sentence: fmt.Sprintf("reload finished (%s): %s, %s", request.reason, result.Outcome, describe(result)),
			Fields: map[string]string{"id": strconv.FormatUint(request.id, 10), "outcome": string(result.Outcome), "pending": strings.Join(result.Pending, " "),
				"reasons": strings.Join(result.Reasons, "\n")}})
	}
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

func (r *reloader) setPhase(request *reload, p api.Progress) {
	phase := fmt.Sprintf("reloading (%s): %s", request.reason, p.Phase)
	if !p.Until.IsZero() {
		phase += ", until " + p.Until.Format(time.TimeOnly) + " at the latest"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, underWay := r.phases[request]; underWay {
		r.phases[request] = phase
	}
}

// begun registers a reload as under way, until it ends, and tells it if somebody asked for it.
func (r *reloader) begun(request *reload) {
	r.mu.Lock()
	request.quiet = true
	r.phases[request] = ""
	r.mu.Unlock()
	if len(request.files) == 0 {
		r.acts(request)
	}
}

// acts tells that a reload has begun, once: when it is asked for, or when a changed file is found to have an effect. A refusal is one.
func (r *reloader) acts(request *reload) {
	r.mu.Lock()
	quiet := request.quiet
	request.quiet = false
	if quiet {
		r.told++
	}
	r.mu.Unlock()
	if !quiet {
		return
	}
	r.board.Publish(condition.Event{Kind: condition.KindReloadStarted, Sentence: "reload: " + request.reason,
		Fields: map[string]string{"id": strconv.FormatUint(request.id, 10), "reason": request.reason}})
}

// begunSoFar is how many reloads were told to begin.
func (r *reloader) begunSoFar() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told
}

// doing says what the reloads under way do: the oldest of them, and how many there are.
func (r *reloader) doing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var oldest *reload
	for request := range r.phases {
		if oldest == nil || request.id < oldest.id {
			oldest = request
		}
	}
	if len(r.phases) > 1 {
		return fmt.Sprintf("%s (and %d more)", r.phases[oldest], len(r.phases)-1)
	}
	return r.phases[oldest]
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

// standing is how reloads stand, for the status; busy is whether one is under way that is not quiet.
func (r *reloader) standing() (last *api.LastReload, pending []string, busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for request := range r.phases {
		busy = busy || !request.quiet
	}
	return r.last, r.pending, busy
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
