package bus

import (
	"context"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/epoch/record"
)

// Backend is implemented by the agent. Its methods must be safe for concurrent use. An *Error
// determines the D-Bus error of the reply; any other error is sent as
// org.outrider.Agent1.Error.Failed with its text.
type Backend interface {
	Observer
	Changer
	Configurator
}

// Observer reports the state of the agent.
type Observer interface {
	// State returns the current state. It may query Envoy and returns when ctx ends.
	State(ctx context.Context) State
	// Measure returns the current resource usage of running epochs, by ID.
	Measure(ctx context.Context) map[string]Figures
	// Changed returns a channel that is closed when State may have changed since the call for a
	// reason other than an event of the board.
	Changed() <-chan struct{}
}

// Changer changes the running proxy.
type Changer interface {
	// Reload starts a reload and returns its ID as soon as it is accepted. An event of kind
	// condition.KindReloadFinished with that ID reports its end.
	Reload(ctx context.Context, ifChanged bool) (id uint64, err error)
	Drain(ctx context.Context) error
	Undrain(ctx context.Context) error
	// Abort terminates an epoch immediately. It returns NoSuchEpoch if the epoch is not running.
	Abort(ctx context.Context, number int) error
}

// Configurator returns and checks the configuration.
type Configurator interface {
	// CheckConfig returns the problems of a configuration file, one sentence each; path "" is the
	// agent's own file. err reports that the file could not be checked.
	CheckConfig(ctx context.Context, path string) (problems []string, err error)
	// DumpConfig returns the effective configuration as TOML.
	DumpConfig(ctx context.Context) (string, error)
	// SetLogLevel sets the level of scope: "agent", "envoy", or "envoy:COMPONENT".
	SetLogLevel(ctx context.Context, scope, level string) error
}

// Events is the source of signals; *condition.Board implements it.
type Events interface {
	Events(after uint64) []condition.Event
	Watch(buffer int) (<-chan condition.Event, func())
	Conditions() []condition.Condition
}

// Conditions receives the conditions of this package; *condition.Board implements it.
type Conditions interface {
	Raise(code string, severity condition.Severity, sentence string)
	Clear(code string)
}

// State is the state of the agent. Its fields correspond to the properties of the same names in
// packaging/dbus/interfaces; zero times are sent as 0.
type State struct {
	Version  string
	Instance string
	UnitName string

	State       string // starting, running, reloading, draining, stopping, failed
	Ready       bool
	ReadyReason string
	EnvoyLive   bool

	CurrentEpoch *int // nil: no epoch serves
	EnvoyVersion string

	ConfigFiles        []string
	ConfigHash         string
	PendingRestartKeys []string

	LastReload        time.Time
	LastReloadOutcome string
	LastError         string

	DiscoveryAddress string
	DiscoveryState   string
	Capture          string // off, on, withdrawn, trial

	Epochs  []Epoch  // running epochs and the most recently exited
	Secrets []Secret // without key material
}

// Epoch is one Envoy process and its restart epoch.
type Epoch = record.Epoch

// Figures are the resource usage of an epoch.
type Figures struct {
	Connections uint64
	MemoryBytes uint64
}

// Secret describes a certificate.
type Secret struct {
	ResourceName string
	Source       string
	SpiffeID     string
	Issuer       string
	Serial       string
	NotBefore    time.Time
	NotAfter     time.Time
	Renewal      time.Time
}
