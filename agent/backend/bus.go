package backend

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
)

// Bus implements bus.Backend. It shows the same state as the private socket.
type Bus struct {
	*Backend
	Unit string // systemd unit; "" in the foreground or if unknown
}

// State returns the values of all bus properties.
func (b Bus) State(context.Context) bus.State {
	ready, reason := b.Proxy.Ready()
	current := b.Reloader.InForce()
	last, pending, _ := b.Reloader.Standing()
	state := bus.State{
		Version: b.Version, Instance: b.Options.Instance, UnitName: b.Unit,
		State: string(b.state()), Ready: ready, ReadyReason: reason,
		ConfigFiles: current.Files, ConfigHash: current.Hash, PendingRestartKeys: pending,
		DiscoveryAddress: current.Config.Discovery.Address,
		DiscoveryState:   b.discoveryStatus(nil).State,
		Capture:          string(b.Interception.State().State),
	}
	if live, ok := b.Proxy.Epoch(); ok {
		state.EnvoyLive, state.CurrentEpoch = true, &live.Number
	}
	if binary := b.Agent.Binary(); binary != nil {
		state.EnvoyVersion = binary.Version
	}
	if last != nil {
		state.LastReload, state.LastReloadOutcome, state.LastError = last.Time,
			string(last.Outcome), strings.Join(last.Reasons, "; ")
	}
	state.Epochs, state.Secrets = b.Supervisor.Epochs(), b.secrets()
	return state
}

// secrets describes the secrets for D-Bus.
func (b Bus) secrets() []bus.Secret {
	var all []bus.Secret
	for _, s := range b.identities() {
		all = append(all, bus.Secret{
			ResourceName: s.Name, Source: s.Source, SpiffeID: s.SPIFFEID, Issuer: s.Issuer,
			Serial: s.Serial, NotBefore: s.NotBefore, NotAfter: s.NotAfter, Renewal: s.Renewal,
		})
	}
	return all
}

// Measure returns the connections and memory of the running epochs, by epoch ID.
func (b Bus) Measure(ctx context.Context) map[string]bus.Figures {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	figures := map[string]bus.Figures{}
	for id, p := range b.Keeper.Measure(ctx) {
		figures[id] = bus.Figures{Connections: p.Connections, MemoryBytes: p.MemoryBytes}
	}
	return figures
}

// Reload begins a reload and returns its ID.
func (b Bus) Reload(ctx context.Context, ifChanged bool) (uint64, error) {
	return b.Reloader.Begin(ctx, "D-Bus request", ifChanged)
}

// Drain starts draining the live epoch.
func (b Bus) Drain(ctx context.Context) error { return busRefusal(b.Supervisor.Drain(ctx)) }

// Undrain ends a drain. The undrain continues if the caller's deadline passes; the error then says
// so.
func (b Bus) Undrain(ctx context.Context) error {
	_, err := b.Supervisor.Undrain(ctx, nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return bus.Refused(
			"the undrain continues, but no new epoch is live yet; the property State tells when it is done")
	}
	return busRefusal(err)
}

// Abort kills an epoch.
func (b Bus) Abort(ctx context.Context, number int) error {
	err := b.Supervisor.Abort(ctx, number)
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
func (b Bus) CheckConfig(ctx context.Context, path string) ([]string, error) {
	options := b.Options
	if path != "" {
		options = config.Options{Directory: options.Directory,
			Environment: options.Environment, InUnit: options.InUnit}.Of(path)
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
func (b Bus) DumpConfig(context.Context) (string, error) {
	return b.Reloader.InForce().Show(), nil
}

// SetLogLevel sets the level of one scope: agent, envoy or envoy:COMPONENT.
func (b Bus) SetLogLevel(ctx context.Context, scope, level string) error {
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
