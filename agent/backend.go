package agent

import (
	"context"
	"os"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/envoy"
)

// backend is the agent as the private socket shows it (api.Backend).
type backend struct{ *Agent }

// measureTime bounds the keeper's look at the memory and connections of the epochs.
const measureTime = 2 * time.Second

// Status folds the state of all parts into one answer.
func (b backend) Status(ctx context.Context) (api.Status, error) {
	ready, reason := b.proxy.ready(ctx)
	current := b.reloader.InForce()
	last, pending, _ := b.reloader.Standing()
	problems := b.discovery.Problems()
	if ready && b.discovery.Stats().Services <= mostCounted {
		problems = b.problems(ctx)
	}
	status := api.Status{
		Version: b.options.Version, Instance: b.options.Config.Instance, PID: os.Getpid(), Started: b.started, Present: b.presence.Since(),
		State: b.state(), Ready: ready, ReadyReason: reason,
		Envoy:      api.EnvoyStatus{Enabled: current.Config.Envoy.Enabled},
		Epochs:     b.epochs(ctx),
		Discovery:  b.discoveryStatus(problems),
		Identities: b.identities(),
		LastReload: last, ConfigFiles: current.Files, ConfigHash: current.Hash, PendingKeys: pending, Claims: append(current.Config.Claims(), b.meshPorts.Claims()...),
		Conditions: b.board.Conditions(), Doing: b.reloader.Phase(),
	}
	status.Problems = problemsForAPI(problems[:min(len(problems), api.MaxMeshProblems)])
	if live, ok := b.proxy.liveEpoch(); ok {
		status.CurrentEpoch, status.Envoy.Live = &live.Number, true
	}
	if binary := b.runs(); binary != nil {
		status.Envoy.Path, status.Envoy.Version = binary.Path, binary.Version
	}
	return status, nil
}

// runs returns the Envoy of the configuration in force, before there is one that which is to start;
// nil if neither is known.
func (a *Agent) runs() *envoy.Binary {
	if serving := a.serving.Load(); serving != nil {
		return serving
	}
	return a.binary.Load()
}

// epochs are all epochs with what the keeper measures of those that live.
func (b backend) epochs(ctx context.Context) []api.Epoch {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	measured := b.keeper.Measure(ctx)
	all := b.supervisor.Epochs()
	for i, e := range all {
		if figures, ok := measured[e.ID]; ok {
			all[i].MemoryBytes, all[i].Connections = figures.MemoryBytes, figures.Connections
		}
	}
	return all
}

// state is the agent's state as on the bus.
func (b backend) state() api.State {
	live, ok := b.proxy.liveEpoch()
	_, _, busy := b.reloader.Standing()
	switch {
	case b.stopping.Load():
		return api.StateStopping
	case !ok:
		return api.StateStarting
	case busy:
		return api.StateReloading
	case live.Drained:
		return api.StateDraining
	default:
		return api.StateRunning
	}
}

// WaitReady waits for readiness.
func (b backend) WaitReady(ctx context.Context, progress func(api.Progress)) error {
	return b.proxy.waitReady(ctx, progress)
}

// Reload is what SIGHUP does, with an answer.
func (b backend) Reload(ctx context.Context, request api.ReloadRequest, progress func(api.Progress)) (api.ReloadResult, error) {
	reason := "outrider reload"
	if request.Systemctl {
		reason = "systemctl reload"
	}
	result, err := b.reloader.Reload(ctx, &reload{reason: reason, ifChanged: request.IfChanged, progress: progress})
	for _, c := range b.board.Conditions() {
		if c.Code == discovery.ConditionProblems {
			result.Mesh = c.Sentence
		}
	}
	return result, err
}

// Config returns the configuration in force without what may be a secret, which ends up in tickets.
func (b backend) Config(context.Context) (api.Config, error) {
	current := b.reloader.InForce()
	return api.Config{Text: current.ShowEveryone(), Files: current.Files, Hash: current.Hash, Values: values(current)}, nil
}

// ConfigDiff is what is on disk against what is in force.
func (b backend) ConfigDiff(context.Context) (api.ConfigDiff, error) {
	loaded, err := config.Load(b.options.Config)
	if err != nil {
		return api.ConfigDiff{Errors: reasons(err)}, nil
	}
	diff := api.ConfigDiff{Changes: []api.Change{}}
	for _, change := range config.Compare(b.reloader.InForce().Config, loaded.Config) {
		diff.Changes = append(diff.Changes, api.Change{Key: change.Key, Old: change.Old, New: change.New, Effect: change.Effect.String()})
	}
	return diff, nil
}

// Admin reads the live epoch's admin interface, through the view: it removes credentials.
func (b backend) Admin(ctx context.Context, path, query string) (api.AdminResponse, error) {
	answer, number, err := b.view.Get(ctx, "/"+path, query) //nolint:bodyclose // the server of the socket closes it
	if err != nil {
		return api.AdminResponse{}, api.Refuse(err.Error())
	}
	return api.AdminResponse{Epoch: number, Status: answer.StatusCode, ContentType: answer.Header.Get("Content-Type"), Body: answer.Body}, nil
}

// Report is what a bug report needs of the agent itself.
func (b backend) Report(context.Context) ([]api.ReportPiece, error) {
	return b.report(), nil
}
