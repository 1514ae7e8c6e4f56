package backend

import (
	"context"
	"errors"
	"net/http"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// The methods below are those of bus.Backend that the private socket lacks.

// BeginReload begins a reload and returns its ID.
func (b *Backend) BeginReload(ctx context.Context, ifChanged bool) (uint64, error) {
	b.Discovery.Proceed()
	return b.Reloader.Begin(ctx, "D-Bus request", ifChanged)
}

// Abort kills an epoch.
func (b *Backend) Abort(ctx context.Context, number int) error {
	err := b.Supervisor.Abort(ctx, number)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, epoch.ErrNoEpoch):
		return &api.Error{Status: http.StatusNotFound, Message: err.Error()}
	}
	return api.Refuse(err.Error())
}

// CheckConfig returns the errors in a configuration file. The path "" means the agent's own
// configuration.
func (b *Backend) CheckConfig(ctx context.Context, path string) ([]string, error) {
	options := b.Options
	if path != "" {
		options = config.Options{Directory: options.Directory,
			Environment: options.Environment, InUnit: options.InUnit,
			Unreadable: options.Unreadable}.Of(path)
	}
	checker := b.Checker
	checker.Folder = b.Reloader.InForce().Config.Envoy.ConfigDir
	report := blueprint.Check(ctx, options, checker)
	if len(report.Errors) == 0 {
		return nil, nil
	}
	return config.Reasons(report.Errors), nil
}

// DumpConfig returns the effective configuration as TOML.
func (b *Backend) DumpConfig(context.Context) (string, error) {
	return b.Reloader.InForce().Show(), nil
}
