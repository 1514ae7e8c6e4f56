package bus

import (
	"context"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/epoch/record"
)

// Backend is what the agent implements. Every method may be called from many goroutines. An *Error decides what a caller is
// told; any other error is org.outrider.Agent1.Error.Failed with its text.
type Backend interface {
	Observer
	Changer
	Configurator
}

// Observer tells how the agent is.
type Observer interface {
	// State is everything that is shown. It may take as long as it needs to ask Envoy, but ends with ctx.
	State(ctx context.Context) State
	// Measure is what the epochs that live use now, by their ID.
	Measure(ctx context.Context) map[string]Figures
	// Changed is closed when State may have changed since the call, other than by an event of the board.
	Changed() <-chan struct{}
}

// Changer changes what runs.
type Changer interface {
	// Reload begins a reload and returns its id as soon as it is accepted. Its end is an event of kind
	// condition.KindReloadFinished with that id.
	Reload(ctx context.Context, ifChanged bool) (id uint64, err error)
	Drain(ctx context.Context) error
	Undrain(ctx context.Context) error
	// Abort ends an epoch at once; NoSuchEpoch if it does not live.
	Abort(ctx context.Context, number int) error
}

// Configurator shows and checks configuration.
type Configurator interface {
	// CheckConfig returns what is wrong with a configuration file, one sentence each; "" is the file the agent reads. err is
	// that it could not be checked at all.
	CheckConfig(ctx context.Context, path string) (problems []string, err error)
	// DumpConfig is the effective configuration as TOML.
	DumpConfig(ctx context.Context) (string, error)
	// SetLogLevel sets the level of scope: "agent", "envoy", or "envoy:COMPONENT".
	SetLogLevel(ctx context.Context, scope, level string) error
}

// Events is where signals come from; *condition.Board is one.
type Events interface {
	Events(after uint64) []condition.Event
	Watch(buffer int) (<-chan condition.Event, func())
	Conditions() []condition.Condition
}

// Conditions is where the part tells that it has no bus; *condition.Board is one.
type Conditions interface {
	Raise(code string, severity condition.Severity, sentence string)
	Clear(code string)
}

// State is the agent as the bus shows it. The meaning of the fields is that of the properties of the same names in
// packaging/dbus/interfaces; times that are zero are shown as 0.
type State struct {
	Version  string
	Instance string
	UnitName string

	State       string // starting, running, reloading, draining, stopping, failed
	Ready       bool
	ReadyReason string
	EnvoyLive   bool

	CurrentEpoch *int // nil: none serves
	EnvoyVersion string

	ConfigFiles        []string
	ConfigHash         string
	PendingRestartKeys []string

	LastReload        time.Time
	LastReloadOutcome string
	LastError         string

	DiscoveryAddress string
	DiscoveryState   string

	Epochs  []Epoch  // those that live and the last that exited
	Secrets []Secret // without key material
}

// Epoch is one Envoy process with its number.
type Epoch = record.Epoch

// Figures are what an epoch uses.
type Figures struct {
	Connections uint64
	MemoryBytes uint64
}

// Secret is a certificate.
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
