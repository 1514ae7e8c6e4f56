// Package api defines the agent's private socket: HTTP and JSON over a Unix socket, used by the
// command `outrider`. It contains the types of requests and responses, the Server with its
// authorisation AccessRule, and the Client. The agent implements Backend.
package api

import (
	"net/netip"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch/record"
)

// PathPrefix is the path prefix of all requests and the version of this protocol. New fields do not
// change the version: clients ignore unknown fields, and the agent rejects requests with unknown
// fields.
const PathPrefix = "/v1"

// SocketName is the file name of the socket in the instance's runtime directory.
const SocketName = "outrider.sock"

// AgentState is the state of the agent, with the same values as on D-Bus.
type AgentState string

// The states of an agent.
const (
	StateStarting  AgentState = "starting"
	StateRunning   AgentState = "running"
	StateReloading AgentState = "reloading"
	StateDraining  AgentState = "draining"
	StateStopping  AgentState = "stopping"
	StateFailed    AgentState = "failed"
)

// Status is the status of an agent, as shown by `outrider status`.
type Status struct {
	Version  string    `json:"version"` // version of the agent
	Instance string    `json:"instance,omitempty"`
	PID      int       `json:"pid"`
	Started  time.Time `json:"started"`
	// ReachableSince is the time since which other agents on the host can query this agent. If two
	// agents with conflicting claims start, the one with the earlier time has priority.
	ReachableSince time.Time   `json:"present,omitzero"`
	State          AgentState  `json:"state"`
	Ready          bool        `json:"ready"`
	NotReadyReason string      `json:"ready_reason,omitempty"` // why Ready is false
	Envoy          EnvoyStatus `json:"envoy"`
	// CurrentEpoch is nil before the first epoch, and if Envoy is disabled.
	CurrentEpoch *int      `json:"current_epoch,omitempty"`
	Epochs       []Epoch   `json:"epochs"`
	Discovery    Discovery `json:"discovery"`
	// Health is nil if no health is reported upstream.
	Health *Health `json:"health,omitempty"`
	// Capture is the state of the interception: off, on, withdrawn, closed or trial.
	Capture    string      `json:"capture,omitempty"`
	Identities []Identity  `json:"identities"`
	LastReload *LastReload `json:"last_reload,omitempty"`
	// ReloadPhase describes the current phase of the reloads in progress.
	ReloadPhase string   `json:"doing,omitempty"`
	ConfigFiles []string `json:"config_files"`
	ConfigHash  string   `json:"config_hash"`
	// KeysPendingRestart are keys whose change takes effect at the next start.
	KeysPendingRestart []string `json:"pending_keys,omitempty"`
	// Claims are the ports, sockets and base IDs that no other agent on the host can use.
	Claims     []config.HostClaim    `json:"claims"`
	Conditions []condition.Condition `json:"conditions"`
	// OutsideMutualTLS are ports for which the mesh requires mutual TLS, but which the
	// configuration excludes from interception.
	OutsideMutualTLS []PortOutsideMutualTLS `json:"outside_mutual_tls,omitempty"`
	// PreInterceptionConnections were established before the interception rules and therefore
	// bypass mutual TLS.
	PreInterceptionConnections []PreInterceptionConnections `json:"older_connections,omitempty"`
	// FailingBackends are endpoints that have failed and had no success since.
	FailingBackends []FailingBackend `json:"failing_backends,omitempty"`
	// Problems has at most MaxMeshProblems problems; Discovery states their total number.
	Problems []MeshProblem `json:"mesh_problems,omitempty"`
}

// PortOutsideMutualTLS is a port without mutual TLS. Reason is the configuration key that excludes
// the port, or the name of the service on it.
type PortOutsideMutualTLS struct {
	Port   uint16 `json:"port"`
	Reason string `json:"reason"`
}

// PreInterceptionConnections counts the connections of one peer to a port of an application.
type PreInterceptionConnections struct {
	Port  uint16     `json:"port"`
	Peer  netip.Addr `json:"peer,omitzero"` // zero: all peers without an entry of their own
	Count int        `json:"count"`
}

// FailingBackend is an endpoint that refuses connections or does not answer.
type FailingBackend struct {
	Cluster  string    `json:"cluster"`
	Host     string    `json:"host"`
	Address  string    `json:"address,omitempty"` // empty: the cluster has no healthy endpoint
	Cause    string    `json:"cause"`             // of the last failure
	Since    time.Time `json:"since"`
	Failures uint64    `json:"failures"`
}

// MaxMeshProblems is the maximum number of problems in Status.
const MaxMeshProblems = 100

// EnvoyStatus describes the Envoy binary, not an epoch.
type EnvoyStatus struct {
	Enabled bool   `json:"enabled"` // [envoy] enabled
	Live    bool   `json:"live"`
	Version string `json:"version,omitempty"`
	Path    string `json:"path,omitempty"`
}

// Discovery describes the source of the proxy's xDS resources.
type Discovery struct {
	State   string    `json:"state"`             // embedded, connected, connecting, cached
	Address string    `json:"address,omitempty"` // of the upstream server in use; empty if embedded
	Since   time.Time `json:"since,omitzero"`
	Detail  string    `json:"detail,omitempty"` // for people: "12 files, 1 problem"
	// Unused are the other addresses of the upstream server.
	Unused []UnusedAddress `json:"unused,omitempty"`
}

// UnusedAddress is an address of the upstream server that is not in use.
type UnusedAddress struct {
	Address string    `json:"address"`
	Error   string    `json:"error,omitempty"` // why it is not used; empty: not needed
	Since   time.Time `json:"since,omitzero"`  // time of Error
}

// Health is the health of the workload that is reported upstream.
type Health struct {
	State  string    `json:"state"` // unknown, healthy, unhealthy
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"` // why it is unhealthy
}

// Epoch is one Envoy process and its restart epoch.
type Epoch = record.Epoch

// EpochState is the state of an epoch. The API uses the states below.
type EpochState = record.State

// The states of an epoch.
const (
	EpochStarting = record.StateStarting
	EpochLive     = record.StateLive
	EpochDraining = record.StateDraining
	EpochExited   = record.StateExited
)

// Identity describes, without its key, a certificate that the agent holds or that Envoy presents
// from files.
type Identity struct {
	Name      string    `json:"name"` // resource name: default, ROOTCA, file-cert:…
	Subject   string    `json:"subject,omitempty"`
	SPIFFEID  string    `json:"spiffe_id,omitempty"`
	Issuer    string    `json:"issuer,omitempty"`
	Serial    string    `json:"serial,omitempty"`
	Source    string    `json:"source"`              // files, istiod, spire, cache
	NotBefore time.Time `json:"not_before,omitzero"` // zero: no certificate yet, see Problem
	NotAfter  time.Time `json:"not_after,omitzero"`
	Renewal   time.Time `json:"renewal,omitzero"`
	Problem   string    `json:"problem,omitempty"` // why there is no certificate, or no newer one
	Names     []string  `json:"names,omitempty"`   // DNS names and addresses
	File      string    `json:"file,omitempty"`    // file with the certificate or the roots
	// PresentedBy are the objects of the mesh configuration that use the certificate: FILE:LINE
	// KIND NS/NAME.
	PresentedBy []string `json:"presented_by,omitempty"`
	// StorageState says whether the certificate is on disk for the next start of the agent: sealed
	// (stored encrypted), pending (not stored yet), empty (not to be stored).
	StorageState string `json:"stored,omitempty"`
}

// Values of Identity.StorageState.
const (
	IdentityNotStored    = ""
	IdentityStoredSealed = "sealed"
)

// ReloadOutcome is the outcome of a reload, with the same values as on D-Bus.
type ReloadOutcome string

// The outcomes of a reload.
const (
	OutcomeRestarted ReloadOutcome = "restarted" // a new epoch is live
	OutcomeApplied   ReloadOutcome = "applied"   // applied without a new epoch
	OutcomeUnchanged ReloadOutcome = "unchanged" // nothing to do
	OutcomeRefused   ReloadOutcome = "refused"   // refused for Reasons; nothing changed
)

// LastReload is the outcome of the last reload, whoever requested it.
type LastReload struct {
	Time    time.Time     `json:"time"`
	Outcome ReloadOutcome `json:"outcome"`
	Epoch   *int          `json:"epoch,omitempty"` // epoch that has served since the reload
	Reasons []string      `json:"reasons,omitempty"`
}

// ReloadRequest requests a reload, like SIGHUP.
type ReloadRequest struct {
	// IfChanged starts a new epoch only if a change requires one.
	IfChanged bool `json:"if_changed,omitempty"`
	// AbortEpochs lists draining epochs to kill, together with their clients' connections, so that
	// the reload need not wait for them. They are killed only if the reload starts an epoch and
	// Envoy accepts its configuration.
	AbortEpochs []int `json:"abort,omitempty"`
	// FromSystemctl marks requests of ExecReload=, which are logged as systemctl reload.
	FromSystemctl bool `json:"systemctl,omitempty"`
}

// Progress is the progress of a long operation.
type Progress struct {
	// Phase describes the phase: "validating", "waiting for epoch 3 to exit".
	Phase       string    `json:"phase"`
	Until       time.Time `json:"until,omitzero"` // latest end of the phase; zero: unknown
	Epoch       *int      `json:"epoch,omitempty"`
	Connections *uint64   `json:"connections,omitempty"` // remaining connections of a drain
}

// Change is one changed key.
type Change = config.Change

// ReloadResult is the result of a reload.
type ReloadResult struct {
	ID            uint64        `json:"id,omitempty"`
	Outcome       ReloadOutcome `json:"outcome"`
	PreviousEpoch *int          `json:"previous,omitempty"` // epoch that served before
	Epoch         *int          `json:"epoch,omitempty"`    // epoch that serves now
	StartMode     string        `json:"mode,omitempty"`     // first, hot-restart, side-by-side
	// StartedUnneededEpoch reports whether the new epoch was started although no change required
	// it, because [reload] on_request is "always".
	StartedUnneededEpoch bool `json:"on_request,omitempty"`
	// Changes are the configuration keys that this reload changed.
	Changes []Change `json:"changes,omitempty"`
	// Superseded reports whether a different configuration, requested later, is active.
	Superseded bool `json:"newer,omitempty"`
	// ChangedFiles are the files whose content changed (certificates, template, override).
	ChangedFiles []string `json:"files,omitempty"`
	// KeysPendingRestart are keys whose change takes effect at the next start.
	KeysPendingRestart []string `json:"pending,omitempty"`
	Reasons            []string `json:"reasons,omitempty"` // reasons of a refusal
	// MeshProblemSummary describes problems of the mesh configuration, which a reload does not
	// affect.
	MeshProblemSummary string        `json:"mesh,omitempty"`
	Duration           time.Duration `json:"duration_ns"`
}

// DrainRequest requests a drain.
type DrainRequest struct {
	// Wait delays the response until the listeners are closed and no connections remain.
	Wait bool `json:"wait,omitempty"`
	// ReportUnhealthy reports the workload as unhealthy upstream until Undrain, so that the mesh
	// stops sending requests before the host leaves the mesh. Nothing is drained.
	ReportUnhealthy bool `json:"announce,omitempty"`
}

// DrainResult is the state of a drain when the request returns.
type DrainResult struct {
	Connections     uint64 `json:"connections"`       // connections that remain
	UncountedReason string `json:"unknown,omitempty"` // reason why connections cannot be counted
	// Until is when the listeners close and stop accepting connections; zero: they are closed, or
	// the time is unknown.
	Until time.Time `json:"until,omitzero"`
}

// UndrainResult is the result of an undrain. Epoch equals PreviousEpoch if no epoch was draining.
type UndrainResult struct {
	// PreviousEpoch is the draining epoch; nil if it exited before the new one was live.
	PreviousEpoch *int `json:"previous,omitempty"`
	Epoch         int  `json:"epoch"` // epoch that serves now
	// StartMode is hot-restart, side-by-side, first or unchanged.
	StartMode string        `json:"mode"`
	Duration  time.Duration `json:"duration_ns"`
}

// WaitResult is the result of a wait for readiness.
type WaitResult struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // why Ready is false
}

// Config is the active configuration.
type Config struct {
	Text   string         `json:"text"` // TOML with the origin of each value
	Values []config.Value `json:"values"`
	Files  []string       `json:"files"`
	Hash   string         `json:"hash"`
}

// ConfigDiff compares the configuration files with the active configuration.
type ConfigDiff struct {
	Changes []Change `json:"changes"`
	Errors  []string `json:"errors,omitempty"` // problems that make the files invalid
}

// LogLevels are the active levels, or the levels to set, where empty ones are unchanged.
type LogLevels struct {
	Agent      string            `json:"agent,omitempty"`
	Envoy      string            `json:"envoy,omitempty"`
	Components map[string]string `json:"components,omitempty"` // by Envoy logger
}

// ResourceType is the state of one xDS type of one epoch.
type ResourceType struct {
	Epoch            int       `json:"epoch"`
	Type             string    `json:"type"` // type URL
	Version          string    `json:"version,omitempty"`
	Resources        int       `json:"resources"`
	State            string    `json:"state"` // accepted, refused, pending
	Since            time.Time `json:"since,omitzero"`
	RefusalReason    string    `json:"refused,omitempty"` // Envoy's error message
	RefusedVersion   string    `json:"refused_version,omitempty"`
	RefusedResources []string  `json:"refused_resources,omitempty"`
	Source           string    `json:"source"` // upstream, cache, embedded
}

// ReportFile is a file of a bug report that only the agent can provide.
type ReportFile struct {
	Name string `json:"name"` // slash-separated path relative to the report
	Text string `json:"text"`
}
