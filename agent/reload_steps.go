package agent

import (
	"context"
	"fmt"
	"slices"
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

// prepareTime bounds making what a configuration asks for: a look-up of names, and three short runs of Envoy.
const prepareTime = 30 * time.Second

// take begins a reload.
func (r *reloader) take(ctx context.Context, request *reload, waiting *sync.WaitGroup) {
	r.counter++
	request.id, request.began = r.counter, time.Now()
	r.begun(request)
	request.accepted <- request.id
	request.progress(api.Progress{Phase: "reading the configuration"})
	waiting.Go(func() {
		read, err := r.prepare(ctx, request)
		r.inLoop(ctx, request, func() { r.decide(ctx, request, read, err, waiting) })
	})
}

// inLoop has the loop do the next step of a reload.
func (r *reloader) inLoop(ctx context.Context, request *reload, step func()) {
	select {
	case r.finished <- step:
	case <-ctx.Done():
		request.answer <- api.ReloadResult{Outcome: api.OutcomeRefused, Reasons: []string{"the agent ends"}}
	}
}

// prepare reads the configuration and makes what it asks for; it runs beside the loop.
func (r *reloader) prepare(ctx context.Context, request *reload) (*prepared, error) {
	loaded, err := r.configuration(request)
	if err != nil {
		return nil, exit(ExitConfiguration, err)
	}
	read := &prepared{id: request.id, loaded: loaded}
	if !request.first {
		read.pending = pendingKeys(r.started, loaded.Config)
		loaded.Config = config.Keep(r.started, loaded.Config)
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	r.expect(request.id, loaded, nil) // before they are read: no change is missed, though the epoch may have to wait for its turn
	read.wanted, err = r.make(ctx, loaded, listener{
		phase: func(phase string) { request.progress(api.Progress{Phase: phase}) },
		files: func(files []string) { r.expect(request.id, loaded, files) },
	})
	if err == nil {
		err = r.hold(request.id, read)
	}
	read.loses = r.loses(ctx)
	return read, err
}

// configuration reads the configuration, unless it has just been, and has it checked.
func (r *reloader) configuration(request *reload) (*config.Loaded, error) {
	loaded := new(config.Loaded)
	if *loaded = *r.inForce(); !request.first {
		var err error
		if loaded, err = r.load(); err != nil {
			return nil, err
		}
	}
	return loaded, r.check(loaded)
}

// decide asks for the epoch that a configuration needs, or puts it in force if it needs none.
func (r *reloader) decide(ctx context.Context, request *reload, read *prepared, err error, waiting *sync.WaitGroup) {
	request.read = read
	overtaken := r.newest != nil && r.newest.id > request.id
	switch {
	case overtaken:
		read = r.newest // what took longer to read is not what is on disk any more
		err = r.hold(request.id, read)
	case err == nil:
		r.newest = read
	}
	if err != nil {
		request.err = err
		r.refuse(request, reasons(err))
		return
	}
	request.before = r.inForce().Config
	spec := read.wanted.spec
	hash, number, live := r.serves()
	// One that overtook it may have asked for the epoch that it is to have.
	ifChanged := request.ifChanged || request.first || read.loaded.Config.Reload.OnRequest != "always" || overtaken && read.epoch
	// While another reload waits for its epoch, what is live is not what will be: the supervisor decides which one wins.
	if live && hash == spec.Hash && ifChanged && !request.first && len(r.asked) == 0 {
		result := api.ReloadResult{Outcome: api.OutcomeUnchanged, Epoch: &number, Previous: &number}
		_, pending, _ := r.standing()
		r.settled(request, &result, read)
		for _, change := range result.Changes {
			if change.Effect == config.Live.String() {
				result.Outcome = api.OutcomeApplied
			}
		}
		if _, now, _ := r.standing(); result.Outcome == api.OutcomeApplied || !slices.Equal(pending, now) {
			r.acts(request)
		}
		r.finish(request, result)
		return
	}
	if live && read.loses != nil {
		request.err = read.loses
		r.refuse(request, reasons(read.loses))
		return
	}
	result := api.ReloadResult{}
	if live {
		result.Previous = &number
	}
	r.asked, read.epoch = append(r.asked, read), true
	request.progress(api.Progress{Phase: "starting a new epoch"})
	r.acts(request)
	wait := r.ask(epoch.Request{Spec: spec, Reason: request.reason, IfChanged: ifChanged,
		OnWait: func(until time.Time, why string) { request.progress(api.Progress{Phase: why, Until: until}) }}) // here, not below: in order
	waiting.Go(func() {
		outcome, err := wait(ctx)
		r.inLoop(ctx, request, func() { r.applied(request, result, read, outcome, err) })
	})
}

// applied ends a reload that asked for an epoch.
func (r *reloader) applied(request *reload, result api.ReloadResult, read *prepared, outcome epoch.Result, err error) {
	won := r.winner(read)
	r.asked = slices.Delete(r.asked, slices.Index(r.asked, read), slices.Index(r.asked, read)+1)
	if err != nil {
		read.epoch = false
		r.refuse(request, reasons(err))
		return
	}
	r.settled(request, &result, won)
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

// winner is the configuration whose Envoy serves, of those that are asked for or in force: the one that was asked for last.
// nil: none of them, so what is in force stays.
func (r *reloader) winner(read *prepared) *prepared {
	hash, _, live := r.serves()
	if !live {
		return read // it was live a moment ago
	}
	var won *prepared
	for _, candidate := range append(slices.Clone(r.asked), r.committed) {
		if candidate != nil && candidate.wanted.spec.Hash == hash && (won == nil || candidate.id > won.id) {
			won = candidate
		}
	}
	return won
}

// settled puts the configuration that won in force, if it is not yet, and tells what that changed.
func (r *reloader) settled(request *reload, result *api.ReloadResult, won *prepared) {
	if won != nil && (r.committed == nil || won.id > r.committed.id) {
		r.committed = won
		r.commit(won)
	}
	result.Newer = r.committed != nil && r.committed.id > request.id && !r.committed.same(request.read)
	result.Files = request.files
	for _, change := range config.Compare(request.before, r.inForce().Config) {
		result.Changes = append(result.Changes, api.Change{Key: change.Key, Old: change.Old, New: change.New, Effect: change.Effect.String()})
	}
}

// same is whether two reloads have read the same.
func (p *prepared) same(other *prepared) bool {
	return other != nil && other.wanted != nil && other.loaded.Hash == p.loaded.Hash && other.wanted.spec.Hash == p.wanted.spec.Hash
}

// commit puts a configuration in force.
func (r *reloader) commit(won *prepared) {
	loaded, pending := won.loaded, won.pending
	r.mu.Lock()
	old := r.current
	r.current, r.pending = loaded, pending
	r.mu.Unlock()
	if won.id > r.refused { // else what was read after it is still refused
		r.board.Clear(conditionRefused)
	}
	if len(pending) > 0 {
		r.board.Raise(conditionPending, condition.Info, fmt.Sprintf("changed, but in force only after the next start of outriderd: %s", strings.Join(pending, ", ")))
	} else {
		r.board.Clear(conditionPending)
	}
	for _, warning := range loaded.Warnings {
		r.log.Warn("configuration", "warning", warning.Error())
	}
	r.enact(old, won)
}
