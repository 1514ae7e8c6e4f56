package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// prepareTime bounds the preparation of a configuration, which includes name lookups and three
// short runs of Envoy.
const prepareTime = 30 * time.Second

// take accepts a request, and prepares its configuration in a helper goroutine.
func (r *reloader) take(ctx context.Context, request *reload) {
	r.counter++
	request.id, request.began = r.counter, time.Now()
	r.register(request)
	request.accepted <- request.id
	request.progress(api.Progress{Phase: "reading the configuration"})
	go func() {
		read, err := r.prepareInTime(ctx, request)
		r.post(ctx, func() {
			request.read = read
			r.decide(ctx, request, read, err)
		})
	}()
}

// prepareInTime calls prepare, and returns an error if that takes longer than prepareTime, for
// example because a file system hangs.
func (r *reloader) prepareInTime(ctx context.Context, request *reload) (*prepared, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	type outcome struct {
		read *prepared
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		read, err := r.prepare(ctx, request)
		done <- outcome{read, err}
	}()
	select {
	case o := <-done:
		return o.read, o.err
	case <-ctx.Done():
	}
	select { // prepare usually returns soon after the end of ctx, with a more precise error
	case o := <-done:
		return o.read, o.err
	case <-time.After(time.Second):
		return nil, &ExitError{Code: ExitInternal, Err: fmt.Errorf(
			"%s: no answer within %v; does the file system of a configuration file hang?",
			r.phaseOf(request), prepareTime)}
	}
}

// prepare reads and checks the configuration and makes its spec.
func (r *reloader) prepare(ctx context.Context, request *reload) (*prepared, error) {
	loaded, err := r.configuration(ctx, request)
	if err != nil {
		return nil, exit(ExitConfiguration, err)
	}
	read := &prepared{id: request.id, loaded: loaded, first: request.first}
	if !request.first {
		read.pending = pendingKeys(r.started, loaded.Config)
		loaded.Config = config.RetainRestartKeys(r.started, loaded.Config)
	}
	// Watch the files before they are read, so that a change is noticed even if the supervisor
	// delays the new epoch.
	r.effects.Expect(ctx, request.id, loaded, nil)
	read.wanted, err = r.source.Make(ctx, loaded, listener{
		phase: func(phase string) { request.progress(api.Progress{Phase: phase}) },
		files: func(files []string) { r.effects.Expect(ctx, request.id, loaded, files) },
	})
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = r.effects.Hold(request.id, read)
	}
	read.loses = r.source.LostCertificates(ctx)
	return read, err
}

// configuration reads and checks the configuration. For the agent's start, it uses the one that the
// agent has just loaded.
func (r *reloader) configuration(ctx context.Context, request *reload) (*config.Loaded, error) {
	loaded := new(config.Loaded)
	if *loaded = *r.InForce(); !request.first {
		var err error
		if loaded, err = r.source.Load(); err != nil {
			return nil, err
		}
	}
	return loaded, r.source.Check(ctx, loaded)
}

// decide commits a configuration, requests an epoch for it, or refuses it.
func (r *reloader) decide(ctx context.Context, request *reload, read *prepared, err error) {
	overtaken := r.newest != nil && r.newest.id > request.id
	if overtaken && read != r.newest { // a newer configuration was read: use that one instead
		newest := r.newest
		r.queue(ctx, request, func(func(string)) { err = r.effects.Hold(request.id, newest) },
			func() { r.decide(ctx, request, newest, err) })
		return
	}
	if err != nil {
		request.err = err
		r.refuse(ctx, request, reasons(err))
		return
	}
	if !overtaken {
		r.newest = read
	}
	request.before = r.InForce().Config
	hash, number, live := r.serves()
	// If a newer request was decided first and requested an epoch for this configuration, this
	// request needs no other epoch.
	ifChanged := request.ifChanged || request.first || overtaken && read.epoch ||
		read.loaded.Config.Reload.NewEpochOnRequest != "always"
	// While another reload waits for its epoch, only the supervisor knows which epoch will be live.
	if live && hash == read.wanted.spec.Digest && ifChanged && !request.first &&
		len(r.requested) == 0 {
		r.unchanged(ctx, request, read, number)
		return
	}
	if live && read.loses != nil {
		request.err = read.loses
		r.refuse(ctx, request, reasons(read.loses))
		return
	}
	result := api.ReloadResult{StartedUnneededEpoch: live && hash == read.wanted.spec.Digest}
	if live {
		result.PreviousEpoch = &number
	}
	r.requested, read.epoch = append(r.requested, read), true
	request.progress(api.Progress{Phase: "starting a new epoch"})
	r.publish(request)
	// Submit is called in the goroutine of Run, so that the supervisor receives requests in order.
	wait := r.supervisor.Submit(epoch.Request{
		Spec: read.wanted.spec, Reason: request.reason, IfChanged: ifChanged,
		AbortEpochs: request.abort,
		OnWait: func(until time.Time, why string) {
			request.progress(api.Progress{Phase: why, Until: until})
		},
	})
	go func() {
		outcome, err := wait(ctx)
		r.post(ctx, func() { r.applied(ctx, request, result, read, outcome, err) })
	}()
}

// unchanged ends a reload that needs no epoch. The reload may still change keys with effect live,
// and the keys that take effect at the next start.
func (r *reloader) unchanged(ctx context.Context, request *reload, read *prepared, number int) {
	result := api.ReloadResult{Outcome: api.OutcomeUnchanged, Epoch: &number, PreviousEpoch: &number}
	_, pending, _ := r.Summary()
	enact := r.commit(ctx, read)
	r.compare(request, &result)
	for _, change := range result.Changes {
		if change.Effect == config.Live {
			result.Outcome = api.OutcomeApplied
		}
	}
	_, now, _ := r.Summary()
	if result.Outcome == api.OutcomeApplied || !slices.Equal(pending, now) {
		r.publish(request)
	}
	r.queue(ctx, request, enact, func() { r.finish(ctx, request, result) })
}

// applied ends a reload that requested an epoch.
func (r *reloader) applied(
	ctx context.Context, request *reload, result api.ReloadResult, read *prepared,
	outcome epoch.Result, err error,
) {
	won := r.winner(read)
	i := slices.Index(r.requested, read)
	r.requested = slices.Delete(r.requested, i, i+1)
	if err != nil {
		read.epoch = false
		r.refuse(ctx, request, reasons(err))
		return
	}
	enact := r.commit(ctx, won)
	r.compare(request, &result)
	result.StartMode = string(outcome.Mode)
	if outcome.Epoch >= 0 { // there is no epoch if Envoy is disabled
		result.Epoch = &outcome.Epoch
	}
	result.Outcome = api.OutcomeRestarted
	switch {
	case outcome.Mode == epoch.NoNewEpoch && len(result.Changes) > 0:
		result.Outcome = api.OutcomeApplied
	case outcome.Mode == epoch.NoNewEpoch:
		result.Outcome = api.OutcomeUnchanged
	}
	if outcome.Previous >= 0 {
		result.PreviousEpoch = &outcome.Previous
	}
	r.queue(ctx, request, enact, func() { r.finish(ctx, request, result) })
}

// winner returns the configuration to put in force after an answer of the supervisor: among the
// requested configurations and the committed one, the newest whose epoch is live. If it returns
// nil, the committed configuration remains in force.
func (r *reloader) winner(read *prepared) *prepared {
	hash, _, live := r.serves()
	if !live {
		// the epoch started for read was live when the supervisor answered, and has ended since
		return read
	}
	var won *prepared
	for _, candidate := range append(slices.Clone(r.requested), r.committed) {
		if candidate != nil && candidate.wanted.spec.Digest == hash &&
			(won == nil || candidate.id > won.id) {
			won = candidate
		}
	}
	return won
}

// compare sets the fields of result about the changes that a reload caused.
func (r *reloader) compare(request *reload, result *api.ReloadResult) {
	result.Superseded = r.committed != nil && r.committed.id > request.id &&
		!r.committed.same(request.read)
	result.ChangedFiles = request.files
	result.Changes = config.Compare(request.before, r.InForce().Config)
}

// same reports whether two reloads have read the same configuration and made the same spec.
func (p *prepared) same(other *prepared) bool {
	return other != nil && other.wanted != nil && other.loaded.Hash == p.loaded.Hash &&
		other.wanted.spec.Digest == p.wanted.spec.Digest
}

// commit puts a configuration in force unless a newer one is in force. It returns a function that
// applies the keys with effect live.
func (r *reloader) commit(ctx context.Context, won *prepared) (enact func(step func(string))) {
	if won == nil || r.committed != nil && won.id <= r.committed.id {
		return func(func(string)) {}
	}
	r.committed = won
	r.mu.Lock()
	old := r.current
	r.current, r.pending = won.loaded, won.pending
	r.mu.Unlock()
	if won.id > r.refused { // otherwise a newer configuration was refused: the condition remains
		r.board.Clear(conditionRefused)
	}
	if len(won.pending) > 0 {
		r.board.Raise(conditionPending, condition.Info, fmt.Sprintf(
			"changed, but in force only after the next start of outriderd: %s",
			strings.Join(won.pending, ", ")))
	} else {
		r.board.Clear(conditionPending)
	}
	for _, warning := range won.loaded.Warnings {
		r.log.Warn("configuration warning", "warning", warning.Error())
	}
	return func(step func(string)) { r.effects.Enact(ctx, old, won, step) }
}
