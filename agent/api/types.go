// Package api is the agent's private socket: HTTP and JSON on a Unix socket, for the command line `outrider`. It holds the
// types that travel, the server with its rule of who may do what, and the client. What the agent does behind it is the
// Backend interface; this package knows nothing of its inside.
package api

import (
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch/record"
)

// Prefix begins every path: the version of the types in this package. Fields may be added under the same version; what a
// client does not know it ignores, and a request with a field the agent does not know is refused.
const Prefix = "/v1"

// SocketName is the socket's name in the instance's runtime folder.
const SocketName = "outrider.sock"

// State is what the agent is doing, as on the bus.
type State string

// The states of an agent.
const (
	StateStarting  State = "starting"
	StateRunning   State = "running"
	StateReloading State = "reloading"
	StateDraining  State = "draining"
	StateStopping  State = "stopping"
	StateFailed    State = "failed"
)

// Status is everything `outrider status` shows, in one answer.
type Status struct {
	Version      string                `json:"version"` // the agent's
	Instance     string                `json:"instance,omitempty"`
	PID          int                   `json:"pid"`
	Started      time.Time             `json:"started"`
	Present      time.Time             `json:"present,omitzero"` // other agents can ask this one since; of two that start the earlier goes first
	State        State                 `json:"state"`
	Ready        bool                  `json:"ready"`
	ReadyReason  string                `json:"ready_reason,omitempty"` // why not
	Envoy        EnvoyStatus           `json:"envoy"`
	CurrentEpoch *int                  `json:"current_epoch,omitempty"` // none before the first, or without Envoy
	Epochs       []Epoch               `json:"epochs"`
	Discovery    Discovery             `json:"discovery"`
	Identities   []Identity            `json:"identities"`
	LastReload   *LastReload           `json:"last_reload,omitempty"`
	Doing        string                `json:"doing,omitempty"` // what reloads under way do or wait for, for people
	ConfigFiles  []string              `json:"config_files"`
	ConfigHash   string                `json:"config_hash"`
	PendingKeys  []string              `json:"pending_keys,omitempty"` // changed on disk, in force at the next start
	Claims       []config.Claim        `json:"claims"`                 // what no other agent of this host can have
	Conditions   []condition.Condition `json:"conditions"`
	Problems     []MeshProblem         `json:"mesh_problems,omitempty"` // the first MaxMeshProblems; Discovery counts all
}

// MaxMeshProblems is how many problems of the mesh configuration Status has at most.
const MaxMeshProblems = 100

// EnvoyStatus is about the program, not about an epoch of it.
type EnvoyStatus struct {
	Enabled bool   `json:"enabled"` // [envoy] enabled
	Live    bool   `json:"live"`
	Version string `json:"version,omitempty"`
	Path    string `json:"path,omitempty"`
}

// Discovery is where the proxy's configuration comes from.
type Discovery struct {
	State   string    `json:"state"`             // embedded, connected, connecting, cached
	Address string    `json:"address,omitempty"` // of the upstream; empty if embedded
	Since   time.Time `json:"since,omitzero"`
	Detail  string    `json:"detail,omitempty"` // for people: "12 files, 1 problem"
}

// Epoch is one Envoy process with its number.
type Epoch = record.Epoch

// EpochState is the state of one epoch, of which the socket shows these.
type EpochState = record.State

// The states of an epoch.
const (
	EpochStarting = record.Starting
	EpochLive     = record.Live
	EpochDraining = record.Draining
	EpochExited   = record.Exited
)

// Identity is a certificate the agent holds; never its key.
type Identity struct {
	Name      string    `json:"name"` // resource name: default, ROOTCA, file-cert:…
	Subject   string    `json:"subject,omitempty"`
	SPIFFEID  string    `json:"spiffe_id,omitempty"`
	Issuer    string    `json:"issuer,omitempty"`
	Serial    string    `json:"serial,omitempty"`
	Source    string    `json:"source"` // files, istiod, spire, cache
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
	Renewal   time.Time `json:"renewal,omitzero"`
}

// Outcome is how a reload ended, as on the bus.
type Outcome string

// The outcomes of a reload.
const (
	OutcomeRestarted Outcome = "restarted" // a new epoch is live
	OutcomeApplied   Outcome = "applied"   // in place, without an epoch
	OutcomeUnchanged Outcome = "unchanged" // nothing to do
	OutcomeRefused   Outcome = "refused"   // the reasons say why; everything is as before
)

// LastReload is how the last reload ended, whoever asked for it.
type LastReload struct {
	Time    time.Time `json:"time"`
	Outcome Outcome   `json:"outcome"`
	Epoch   *int      `json:"epoch,omitempty"` // that serves since
	Reasons []string  `json:"reasons,omitempty"`
}

// ReloadRequest asks for what SIGHUP does.
type ReloadRequest struct {
	IfChanged bool `json:"if_changed,omitempty"` // a new epoch only if something that needs one changed
	Systemctl bool `json:"systemctl,omitempty"`  // ExecReload= of the unit asks: it is logged as systemctl reload
}

// Progress tells how far a long operation is.
type Progress struct {
	Phase       string    `json:"phase"`          // for people: "validating", "waiting for epoch 3 to exit"
	Until       time.Time `json:"until,omitzero"` // at the latest; zero: unknown
	Epoch       *int      `json:"epoch,omitempty"`
	Connections *uint64   `json:"connections,omitempty"` // left, of a drain
}

// Change is one changed value.
type Change struct {
	Key    string `json:"key"`
	Old    string `json:"old"`
	New    string `json:"new"`
	Effect string `json:"effect"` // live, epoch, start
}

// ReloadResult is how a reload ended.
type ReloadResult struct {
	ID       uint64        `json:"id,omitempty"`
	Outcome  Outcome       `json:"outcome"`
	Previous *int          `json:"previous,omitempty"` // epoch that served before
	Epoch    *int          `json:"epoch,omitempty"`    // epoch that serves now
	Mode     string        `json:"mode,omitempty"`     // first, hot-restart, side-by-side
	Changes  []Change      `json:"changes,omitempty"`  // of what is in force, since the reload was asked for
	Newer    bool          `json:"newer,omitempty"`    // a configuration that was asked for later, and is not the same, is in force
	Files    []string      `json:"files,omitempty"`    // whose content changed (certificates, template, override)
	Pending  []string      `json:"pending,omitempty"`  // keys that are in force at the next start only
	Reasons  []string      `json:"reasons,omitempty"`  // of a refusal
	Mesh     string        `json:"mesh,omitempty"`     // what is wrong with the mesh configuration, which a reload does not touch
	Duration time.Duration `json:"duration_ns"`
}

// DrainRequest asks for a drain.
type DrainRequest struct {
	Wait bool `json:"wait,omitempty"` // until the listeners are closed and no connection is left
}

// DrainResult is how a drain stands when the request returns.
type DrainResult struct {
	Connections uint64 `json:"connections"`       // left
	Unknown     string `json:"unknown,omitempty"` // why it is not known how many are left
}

// UndrainResult is the outcome of an undrain. Epoch and Previous are equal if nothing drained.
type UndrainResult struct {
	Previous *int          `json:"previous,omitempty"` // epoch that drained; none: it ended before a new one was live
	Epoch    int           `json:"epoch"`              // epoch that serves now
	Mode     string        `json:"mode"`               // hot-restart, side-by-side, first, unchanged
	Duration time.Duration `json:"duration_ns"`
}

// WaitResult is how a wait for readiness ended.
type WaitResult struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why not
}

// ConfigValue is one effective value.
type ConfigValue struct {
	Key    string `json:"key"`
	Value  string `json:"value"`            // as in TOML
	Source string `json:"source,omitempty"` // file:line; empty: the default
}

// Config is the configuration in force.
type Config struct {
	Text   string        `json:"text"` // TOML, each value with where it came from
	Values []ConfigValue `json:"values"`
	Files  []string      `json:"files"`
	Hash   string        `json:"hash"`
}

// ConfigDiff is the configuration on disk against the one in force.
type ConfigDiff struct {
	Changes []Change `json:"changes"`
	Errors  []string `json:"errors,omitempty"` // why what is on disk would be refused
}

// LogLevels are the levels in force, or those to set: what is empty stays as it is.
type LogLevels struct {
	Agent      string            `json:"agent,omitempty"`
	Envoy      string            `json:"envoy,omitempty"`
	Components map[string]string `json:"components,omitempty"` // of Envoy's loggers
}

// ResourceType is what one xDS type of one epoch stands at.
type ResourceType struct {
	Epoch           int       `json:"epoch"`
	Type            string    `json:"type"` // type URL
	Version         string    `json:"version,omitempty"`
	Resources       int       `json:"resources"`
	State           string    `json:"state"` // accepted, refused, pending
	Since           time.Time `json:"since,omitzero"`
	Refused         string    `json:"refused,omitempty"` // Envoy's words
	RefusedVersion  string    `json:"refused_version,omitempty"`
	RefusedResource []string  `json:"refused_resources,omitempty"`
	Source          string    `json:"source"` // upstream, cache, embedded
}

// ReportPiece is a file of a bug report that only the agent can give.
type ReportPiece struct {
	Name string `json:"name"` // path within the report, relative, with slashes
	Text string `json:"text"`
}
