package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
)

// refuse ends a reload whose configuration is not put in force.
func (r *reloader) refuse(ctx context.Context, request *reload, why []string) {
	r.refused = max(r.refused, request.id)
	r.publish(request)
	_, number, live := r.serves()
	result := api.ReloadResult{ID: request.id, Outcome: api.OutcomeRefused, Reasons: why,
		ChangedFiles: request.files, Duration: time.Since(request.began)}
	remaining := "no epoch is live"
	if live {
		result.Epoch = &number
		remaining = fmt.Sprintf("epoch %d continues serving", number)
	}
	sentence := fmt.Sprintf("reload refused (%s): %s; %s", request.reason,
		strings.Join(why, "; "), remaining)
	r.log.Error("reload refused", "event", condition.KindReloadRefused, "request", request.reason,
		"error", strings.Join(why, "; "), "outcome", remaining)
	r.board.Raise(conditionRefused, condition.Error, sentence)
	r.board.Publish(condition.Event{
		Kind: condition.KindReloadRefused, Epoch: result.Epoch, Sentence: sentence,
		Fields: map[string]string{
			"id": strconv.FormatUint(request.id, 10), "reasons": strings.Join(why, "\n"),
		},
	})
	r.end(ctx, request, result)
}

// finish ends a reload that was not refused.
func (r *reloader) finish(ctx context.Context, request *reload, result api.ReloadResult) {
	result.ID, result.Duration = request.id, time.Since(request.began)
	r.mu.Lock()
	result.KeysPendingRestart = r.pending
	r.mu.Unlock()
	level := slog.LevelInfo
	if result.Outcome == api.OutcomeRestarted {
		level = slog.LevelDebug // log lines about the new epoch already contain the reason
	}
	r.log.Log(context.Background(), level, "reload finished", "reason", request.reason,
		"outcome", string(result.Outcome), "epoch", describe(result),
		"took", result.Duration.Round(time.Millisecond).String())
	r.end(ctx, request, result)
}

func (r *reloader) end(ctx context.Context, request *reload, result api.ReloadResult) {
	r.mu.Lock()
	delete(r.phases, request)
	r.last = &api.LastReload{Time: time.Now(), Outcome: result.Outcome, Epoch: result.Epoch,
		Reasons: result.Reasons}
	quiet := request.quiet
	r.mu.Unlock()
	refused := result.Outcome == api.OutcomeRefused
	r.queue(ctx, nil, func(step func(string)) {
		step("releasing files and ports of the reload")
		r.effects.Release(request.id, refused)
	}, nil)
	if !quiet {
		r.board.Publish(condition.Event{
			Kind: condition.KindReloadFinished, Epoch: result.Epoch,
			Sentence: fmt.Sprintf("reload finished (%s): %s, %s", request.reason, result.Outcome,
				describe(result)),
			Fields: map[string]string{
				"id": strconv.FormatUint(request.id, 10), "outcome": string(result.Outcome),
				"pending": strings.Join(result.KeysPendingRestart, " "),
				"reasons": strings.Join(result.Reasons, "\n"),
			},
		})
	}
	request.answer <- result
}

// describe returns "epoch 3 → 4", "epoch 3" or "no epoch".
func describe(result api.ReloadResult) string {
	switch {
	case result.Epoch == nil:
		return "no epoch"
	case result.PreviousEpoch == nil || *result.PreviousEpoch == *result.Epoch:
		return fmt.Sprintf("epoch %d", *result.Epoch)
	default:
		return fmt.Sprintf("epoch %d → %d", *result.PreviousEpoch, *result.Epoch)
	}
}

// register adds a reload to those in progress. It publishes the start of the reload, unless a
// changed file triggered it: such a reload is published once it has an effect.
func (r *reloader) register(request *reload) {
	r.mu.Lock()
	request.quiet = true
	r.phases[request] = ""
	r.mu.Unlock()
	if len(request.files) == 0 {
		r.publish(request)
	}
}

// publish publishes an event about the start of a reload, unless it has done so before. Callers
// call it when a reload is requested or has an effect; a refusal is an effect.
func (r *reloader) publish(request *reload) {
	r.mu.Lock()
	quiet := request.quiet
	request.quiet = false
	if quiet {
		r.reported++
	}
	r.mu.Unlock()
	if !quiet {
		return
	}
	r.board.Publish(condition.Event{
		Kind: condition.KindReloadStarted, Sentence: "reload: " + request.reason,
		Fields: map[string]string{
			"id": strconv.FormatUint(request.id, 10), "reason": request.reason,
		},
	})
}
