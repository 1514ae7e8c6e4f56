package agent

import (
	"context"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/operations"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/ports"
)

// backend implements api.Backend, bus.Backend and systemd.AgentState.
type backend struct {
	*overview
	configuration
	operations.EpochOperations
	operations.CaptureOperations
	operations.LogLevelOperations
	*operations.MeshOperations
	operations.ResourceOperations
}

// configuration implements the operations on the configuration.
type configuration struct {
	options  config.Options
	reloader *reloader
	board    *condition.Registry
	checker  blueprint.CheckOptions // with the Folder of the configuration in force
}

// Reload reloads the configuration, as SIGHUP does, and returns the outcome.
func (o configuration) Reload(
	ctx context.Context, request api.ReloadRequest, progress func(api.Progress),
) (api.ReloadResult, error) {
	reason := "outrider reload"
	if request.FromSystemctl {
		reason = "systemctl reload"
	}
	result, err := o.reloader.Reload(ctx, reason, request, progress)
	for _, c := range o.board.Conditions() {
		if c.Code == discovery.ConditionMeshProblems || c.Code == ports.ConditionUnbound &&
			result.MeshProblemSummary == "" {
			result.MeshProblemSummary = c.Sentence
		}
	}
	return result, err
}

// Config returns the configuration in force with secrets redacted, so that it can be attached to a
// ticket.
func (o configuration) Config(context.Context) (api.Config, error) {
	current := o.reloader.InForce()
	return api.Config{Text: current.RedactedTOMLWithSources(), Files: current.Files,
		Hash:   current.Hash,
		Values: current.Values()}, nil
}

// ConfigDiff compares the configuration on disk with the one in force. A configuration that cannot
// be loaded is reported in Errors of the result.
func (o configuration) ConfigDiff(context.Context) (api.ConfigDiff, error) {
	loaded, err := config.Load(o.options)
	if err != nil {
		return api.ConfigDiff{Errors: config.ErrorLines(err)}, nil
	}
	changes := config.Compare(o.reloader.InForce().Config, loaded.Config)
	return api.ConfigDiff{Changes: append([]api.Change{}, changes...)}, nil
}

// BeginReload begins a reload and returns its ID.
func (o configuration) BeginReload(ctx context.Context, ifChanged bool) (uint64, error) {
	return o.reloader.Begin(ctx, "D-Bus request", ifChanged)
}

// CheckConfig returns the errors in a configuration file. The path "" means the agent's own
// configuration.
func (o configuration) CheckConfig(ctx context.Context, path string) ([]string, error) {
	options := o.options
	if path != "" {
		options = config.Options{ConfigDirectory: options.ConfigDirectory,
			Environment: options.Environment, RunsInUnit: options.RunsInUnit,
			UnreadableReason: options.UnreadableReason}.WithMainFile(path)
	}
	checker := o.checker
	checker.ValidationDir = o.reloader.InForce().Config.Envoy.ConfigDir
	report := blueprint.Check(ctx, options, checker)
	if len(report.Errors) == 0 {
		return nil, nil
	}
	return config.ErrorLines(report.Errors), nil
}

// DumpConfig returns the effective configuration as TOML.
func (o configuration) DumpConfig(context.Context) (string, error) {
	return o.reloader.InForce().TOMLWithSources(), nil
}
