package bus

import (
	"context"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch/record"
)

// Backend performs the operations of D-Bus; the agent implements it. Its methods must be safe for
// concurrent use. Errors become D-Bus errors org.outrider.Agent1.Error.NAME with the same text.
// NAME is Refused for an *api.Error (InvalidArgument if its Status is 400, NoSuchEpoch if 404), and
// Failed for any other.
type Backend interface {
	// State returns the current state, without resource usage of epochs. It may query Envoy and
	// returns when ctx ends.
	State(ctx context.Context) api.Status
	// EpochsWithResourceUsage returns the epochs with their current resource usage.
	EpochsWithResourceUsage(ctx context.Context) []Epoch
	// Changed returns a channel that is closed after State has changed for a reason of which the
	// condition.Registry has no event. Call Changed before State.
	Changed() <-chan struct{}

	// BeginReload starts a reload and returns its ID as soon as it is accepted. An event of kind
	// condition.KindReloadFinished with that ID reports its end.
	BeginReload(ctx context.Context, ifChanged bool) (id uint64, err error)
	BeginDrain(ctx context.Context) error
	// Undrain returns when an epoch that accepts connections is live. If ctx ends, Undrain returns
	// but the operation continues.
	Undrain(ctx context.Context, progress func(api.Progress)) (api.UndrainResult, error)
	// AbortEpoch terminates an epoch immediately.
	AbortEpoch(ctx context.Context, number int) error

	// CheckConfig returns the problems of a configuration file, one sentence each; path "" is the
	// agent's own file. err reports that the file could not be checked.
	CheckConfig(ctx context.Context, path string) (problems []string, err error)
	// DumpConfig returns the effective configuration as TOML.
	DumpConfig(ctx context.Context) (string, error)
	SetLogLevels(ctx context.Context, levels api.LogLevels) (api.LogLevels, error)
}

// Epoch is one Envoy process and its restart epoch.
type Epoch = record.Epoch
