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

// backend implements api.Backend, the private socket's view of the agent.
type backend struct{ *Agent }

// measureTime bounds the keeper's measurement of the epochs' memory and connections.
const measureTime = 2 * time.Second

// Status returns the combined state of all parts.
func (b backend) Status(ctx context.Context) (api.Status, error) {
	ready, reason := b.proxy.ready(ctx)
	current := b.reloader.InForce()
	last, pending, _ := b.reloader.Standing()
	problems := b.discovery.Problems()
	if ready && b.discovery.Stats().Services <= mostCounted {
		problems = b.problems(ctx)
	}
	status := api.Status{
		Version: b.options.Version, Instance: b.options.Config.Instance, PID: os.Getpid(),
		Started: b.started, Present: b.presence.Since(),
		State: b.state(), Ready: ready, ReadyReason: reason,
		Envoy:      api.EnvoyStatus{Enabled: current.Config.Envoy.Enabled},
		Epochs:     b.epochs(ctx),
		Discovery:  b.discoveryStatus(problems),
		Identities: b.identities(),
		LastReload: last, ConfigFiles: current.Files, ConfigHash: current.Hash,
		PendingKeys: pending, Claims: append(current.Config.Claims(), b.meshPorts.Claims()...),
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

// runs returns the Envoy binary of the configuration in force. Before a configuration is in force,
// it returns the last inspected binary, or nil if there is none.
func (a *Agent) runs() *envoy.Binary {
	if serving := a.serving.Load(); serving != nil {
		return serving
	}
	return a.binary.Load()
}

// epochs returns all epochs. Memory and connections are set for those that the keeper can measure.
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

// state returns the agent's state. D-Bus shows the same one.
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

// WaitReady returns once the proxy is ready, or an error with the reason if ctx ends first.
func (b backend) WaitReady(ctx context.Context, progress func(api.Progress)) error {
	return b.proxy.waitReady(ctx, progress)
}

// Reload reloads like SIGHUP and returns the outcome.
func (b backend) Reload(
	ctx context.Context, request api.ReloadRequest, progress func(api.Progress),
) (api.ReloadResult, error) {
	reason := "outrider reload"
	if request.Systemctl {
		reason = "systemctl reload"
	}
	result, err := b.reloader.Reload(ctx, &reload{reason: reason, ifChanged: request.IfChanged,
		progress: progress})
	for _, c := range b.board.Conditions() {
		if c.Code == discovery.ConditionProblems {
			result.Mesh = c.Sentence
		}
	}
	return result, err
}

// Config returns the configuration in force with secrets redacted, so that it can be attached to a
// ticket.
func (b backend) Config(context.Context) (api.Config, error) {
	current := b.reloader.InForce()
	return api.Config{Text: current.ShowEveryone(), Files: current.Files, Hash: current.Hash,
		Values: values(current)}, nil
}

// ConfigDiff compares the configuration on disk with the one in force. A configuration that cannot
// be loaded is reported in Errors of the result.
func (b backend) ConfigDiff(context.Context) (api.ConfigDiff, error) {
	loaded, err := config.Load(b.options.Config)
	if err != nil {
		return api.ConfigDiff{Errors: reasons(err)}, nil
	}
	diff := api.ConfigDiff{Changes: []api.Change{}}
	for _, change := range config.Compare(b.reloader.InForce().Config, loaded.Config) {
		diff.Changes = append(diff.Changes, api.Change{Key: change.Key, Old: change.Old,
			New: change.New, Effect: change.Effect.String()})
	}
	return diff, nil
}

// Admin sends a GET to the live epoch's admin interface. The view removes credentials from the
// answer.
func (b backend) Admin(ctx context.Context, path, query string) (api.AdminResponse, error) {
	answer, number, err := b.view.Get(ctx, "/"+path, query) //nolint:bodyclose // closed by the server
	if err != nil {
		return api.AdminResponse{}, api.Refuse(err.Error())
	}
	return api.AdminResponse{Epoch: number, Status: answer.StatusCode,
		ContentType: answer.Header.Get("Content-Type"), Body: answer.Body}, nil
}

// Report returns the agent's own part of a bug report.
func (b backend) Report(context.Context) ([]api.ReportPiece, error) {
	return b.report(), nil
}
