package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/bus"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/systemd"
)

// busBackend implements bus.Backend. It shows the same state as the private socket.
type busBackend struct {
	backend
	unit string // systemd unit; "" in the foreground or if unknown
}

// newBus returns the D-Bus server.
func (a *Agent) newBus() (*bus.Server, error) {
	unit := ""
	if a.options.Config.InUnit {
		var err error
		if unit, err = (systemd.Manager{}).Unit(); err != nil {
			a.logOf("bus").Warn("the name of the unit is not known", "error", err)
		}
	}
	return bus.New(bus.Options{Address: a.options.environment()("DBUS_SYSTEM_BUS_ADDRESS"),
		Instance: a.options.Config.Instance, Backend: busBackend{backend{a}, unit}, Events: a.board,
		Conditions: a.board, Logger: a.logOf("bus")})
}

// State returns the values of all bus properties.
func (b busBackend) State(context.Context) bus.State {
	ready, reason := b.proxy.Ready()
	current := b.reloader.InForce()
	last, pending, _ := b.reloader.Standing()
	state := bus.State{
		Version: b.options.Version, Instance: b.options.Config.Instance, UnitName: b.unit,
		State: string(b.state()), Ready: ready, ReadyReason: reason,
		ConfigFiles: current.Files, ConfigHash: current.Hash, PendingRestartKeys: pending,
		DiscoveryAddress: current.Config.Discovery.Address,
		DiscoveryState:   b.discoveryStatus(nil).State,
	}
	if live, ok := b.proxy.liveEpoch(); ok {
		state.EnvoyLive, state.CurrentEpoch = true, &live.Number
	}
	if binary := b.runs(); binary != nil {
		state.EnvoyVersion = binary.Version
	}
	if last != nil {
		state.LastReload, state.LastReloadOutcome, state.LastError = last.Time,
			string(last.Outcome), strings.Join(last.Reasons, "; ")
	}
	state.Epochs, state.Secrets = b.supervisor.Epochs(), b.secretsOnBus()
	return state
}

// Measure returns the connections and memory of the running epochs, by epoch ID.
func (b busBackend) Measure(ctx context.Context) map[string]bus.Figures {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	figures := map[string]bus.Figures{}
	for id, p := range b.keeper.Measure(ctx) {
		figures[id] = bus.Figures{Connections: p.Connections, MemoryBytes: p.MemoryBytes}
	}
	return figures
}

// Changed returns a channel that is closed when the epochs change. All other changes are events of
// the board.
func (b busBackend) Changed() <-chan struct{} { return b.supervisor.Changed() }

// Reload begins a reload and returns its ID.
func (b busBackend) Reload(ctx context.Context, ifChanged bool) (uint64, error) {
	return b.reloader.Begin(ctx, &reload{reason: "asked for over D-Bus", ifChanged: ifChanged})
}

// Drain starts draining the live epoch.
func (b busBackend) Drain(ctx context.Context) error { return busRefusal(b.supervisor.Drain(ctx)) }

// Undrain ends a drain. The undrain continues if the caller's deadline passes; the error then says
// so.
func (b busBackend) Undrain(ctx context.Context) error {
	_, err := b.supervisor.Undrain(ctx, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return bus.Refused(
			"the undrain continues, but no new epoch is live yet; the property State tells when it is done")
	}
	return busRefusal(err)
}

// Abort kills an epoch.
func (b busBackend) Abort(ctx context.Context, number int) error {
	err := b.supervisor.Abort(ctx, number)
	if errors.Is(err, epoch.ErrNoEpoch) {
		return bus.NoSuchEpoch(number)
	}
	return busRefusal(err)
}

func busRefusal(err error) error {
	if err == nil {
		return nil
	}
	return bus.Refused(err.Error())
}

// CheckConfig returns the errors in a configuration file. The path "" means the agent's own
// configuration.
func (b busBackend) CheckConfig(ctx context.Context, path string) ([]string, error) {
	options := b.options.Config
	if path != "" {
		options = config.Options{Directory: options.Directory, Environment: b.options.environment(),
			InUnit: options.InUnit}.Of(path)
	}
	report := blueprint.Check(ctx, options, blueprint.Checker{Maker: b.maker.Maker,
		Runner: b.maker.runner, Folder: b.reloader.InForce().Config.Envoy.ConfigDir})
	if len(report.Errors) == 0 {
		return nil, nil
	}
	return reasons(report.Errors), nil
}

// DumpConfig returns the effective configuration as TOML.
func (b busBackend) DumpConfig(context.Context) (string, error) {
	return b.reloader.InForce().Show(), nil
}

// SetLogLevel sets the level of one scope: agent, envoy or envoy:COMPONENT.
func (b busBackend) SetLogLevel(ctx context.Context, scope, level string) error {
	var levels api.LogLevels
	component, isComponent := strings.CutPrefix(scope, "envoy:")
	switch {
	case scope == "agent":
		levels.Agent = level
	case scope == "envoy":
		levels.Envoy = level
	case isComponent && component != "":
		levels.Components = map[string]string{component: level}
	default:
		return bus.InvalidArgument(
			fmt.Sprintf("there is no scope %q: use agent, envoy, or envoy:COMPONENT", scope))
	}
	_, err := b.SetLogLevels(ctx, levels)
	if refusal, ok := errors.AsType[*api.Error](err); ok && refusal.Status == 400 {
		return bus.InvalidArgument(refusal.Error())
	}
	return busRefusal(err)
}
