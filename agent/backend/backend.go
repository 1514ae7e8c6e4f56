// Package backend implements the operations of the private socket (api.Backend), D-Bus
// (bus.Backend), the status address (status.Control) and the STATUS= sentence for systemd
// (systemd.Agent). It has no state of its own: each operation reads or calls the parts that own it.
package backend

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/dns"
	"outrider.org/outrider/agent/endpoints"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/exposure"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/status"
	"outrider.org/outrider/agent/sts"
	"outrider.org/outrider/agent/xds"
)

// Backend has the parts that its methods read and call. The fields are constant once a part calls a
// method.
type Backend struct {
	Version string
	Options config.Options
	Started time.Time
	Level   *slog.LevelVar // of the agent's log
	Log     *slog.Logger
	Board   *condition.Board
	Checker blueprint.Checker // for CheckConfig; its Folder is that of the configuration in force

	Agent        Agent
	Reloader     Reloader
	Keeper       *epoch.Link
	Supervisor   *epoch.Supervisor
	Proxy        *epoch.Proxy
	Discovery    *discovery.Server
	Ports        *ports.Tracker
	XDS          *xds.Server
	Health       *health.Checker
	Relay        *relay.Server // in use if the configuration has an upstream server
	Identity     *identity.Manager
	STS          *sts.Server // nil if disabled
	DNS          *dns.Server // nil if disabled
	View         *status.View
	Interception *capture.Follower
	Exposure     *exposure.Checker
	Endpoints    *endpoints.Tracker
	Unbound      *ports.Unbound
	Presence     *hostconflict.Presence

	live liveProblems
}

// Agent is the process.
type Agent interface {
	Binary() *envoy.Binary // of the configuration in force; nil: not known yet
	Stopping() bool
	RequestStop() // requests an orderly stop and returns at once
}

// Reloader has the configuration in force and replaces it.
type Reloader interface {
	Reloads
	// Reload returns the outcome. The end of ctx ends the waiting, not the reload.
	Reload(ctx context.Context, reason string, request api.ReloadRequest,
		progress func(api.Progress)) (api.ReloadResult, error)
	// Begin returns the ID of a reload once it is accepted.
	Begin(ctx context.Context, reason string, ifChanged bool) (id uint64, err error)
}

// Reloads is the state of the reloader.
type Reloads interface {
	InForce() *config.Loaded
	// Standing returns the last reload, the pending [start] keys, and whether a reload that was
	// published is in progress.
	Standing() (last *api.LastReload, pending []string, busy bool)
	Phase() string    // of the oldest reload in progress
	Reported() uint64 // number of reloads whose start was published
}

// measureTime bounds the keeper's measurement of the epochs' memory and connections.
const measureTime = 2 * time.Second

// Status returns the combined state of all parts (api.Backend).
func (b *Backend) Status(ctx context.Context) (api.Status, error) {
	status := b.State(ctx)
	status.Epochs = b.Measure(ctx)
	problems := b.problems(ctx, b.Discovery.Stats().Services <= mostCounted)
	status.Discovery = b.discoveryStatus(problems)
	status.Problems = problemsForAPI(problems[:min(len(problems), api.MaxMeshProblems)])
	b.addOutside(&status)
	for _, p := range b.Endpoints.Problems() {
		status.FailingBackends = append(status.FailingBackends, api.FailingBackend{
			Cluster: p.Cluster, Host: p.Host(), Address: p.Address, Cause: p.Cause, Since: p.Since,
			Failures: p.Requests})
	}
	return status, nil
}

// State is Status without the usage of the epochs and the problems of the mesh (bus.Backend).
func (b *Backend) State(ctx context.Context) api.Status {
	ready, reason := b.Proxy.ReadyContext(ctx)
	current := b.Reloader.InForce()
	last, pending, _ := b.Reloader.Standing()
	status := api.Status{
		Version: b.Version, Instance: b.Options.Instance, PID: os.Getpid(),
		Started: b.Started, Present: b.Presence.Since(),
		State: b.state(), Ready: ready, ReadyReason: reason,
		Envoy:      api.EnvoyStatus{Enabled: current.Config.Envoy.Enabled},
		Epochs:     b.Supervisor.Epochs(),
		Discovery:  b.discoveryStatus(nil),
		Capture:    string(b.Interception.State().State),
		Identities: b.identities(),
		LastReload: last, ConfigFiles: current.Files, ConfigHash: current.Hash,
		PendingKeys: pending, Claims: append(current.Config.Claims(), b.Ports.Claims()...),
		Conditions: b.Board.Conditions(), Doing: b.Reloader.Phase(),
	}
	if live, ok := b.Proxy.Epoch(); ok {
		status.CurrentEpoch, status.Envoy.Live = &live.Number, true
	}
	if h := b.Health.Status(); h.State != health.Off {
		status.Health = &api.Health{State: string(h.State), Since: h.Since, Reason: h.Reason}
	}
	if binary := b.Agent.Binary(); binary != nil {
		status.Envoy.Path, status.Envoy.Version = binary.Path, binary.Version
	}
	return status
}

// Measure returns all epochs. Memory and connections are set for those that the keeper can measure.
func (b *Backend) Measure(ctx context.Context) []api.Epoch {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	measured := b.Keeper.Measure(ctx)
	all := b.Supervisor.Epochs()
	for i, e := range all {
		if figures, ok := measured[e.ID]; ok {
			all[i].MemoryBytes, all[i].Connections = figures.MemoryBytes, figures.Downstream
		}
	}
	return all
}

// WaitReady returns once the proxy is ready, or an error with the reason if ctx ends first.
func (b *Backend) WaitReady(ctx context.Context, progress func(api.Progress)) error {
	reason := b.Proxy.WaitReady(ctx, func(reason string) { progress(api.Progress{Phase: reason}) })
	if reason != "" {
		return &api.Error{Message: "the proxy is not ready: " + reason}
	}
	return nil
}

// Reload reloads like SIGHUP and returns the outcome.
func (b *Backend) Reload(
	ctx context.Context, request api.ReloadRequest, progress func(api.Progress),
) (api.ReloadResult, error) {
	reason := "outrider reload"
	if request.Systemctl {
		reason = "systemctl reload"
	}
	b.Discovery.Proceed()
	result, err := b.Reloader.Reload(ctx, reason, request, progress)
	for _, c := range b.Board.Conditions() {
		if c.Code == discovery.ConditionProblems || c.Code == ports.ConditionUnbound &&
			result.Mesh == "" {
			result.Mesh = c.Sentence
		}
	}
	return result, err
}

// Config returns the configuration in force with secrets redacted, so that it can be attached to a
// ticket.
func (b *Backend) Config(context.Context) (api.Config, error) {
	current := b.Reloader.InForce()
	return api.Config{Text: current.ShowEveryone(), Files: current.Files, Hash: current.Hash,
		Values: current.Values()}, nil
}

// ConfigDiff compares the configuration on disk with the one in force. A configuration that cannot
// be loaded is reported in Errors of the result.
func (b *Backend) ConfigDiff(context.Context) (api.ConfigDiff, error) {
	loaded, err := config.Load(b.Options)
	if err != nil {
		return api.ConfigDiff{Errors: config.Reasons(err)}, nil
	}
	changes := config.Compare(b.Reloader.InForce().Config, loaded.Config)
	return api.ConfigDiff{Changes: append([]api.Change{}, changes...)}, nil
}

// Admin sends a GET to the live epoch's admin interface. The view removes credentials from the
// answer.
func (b *Backend) Admin(ctx context.Context, path, query string) (api.AdminResponse, error) {
	answer, number, err := b.View.Get(ctx, "/"+path, query) //nolint:bodyclose // closed by the server
	if err != nil {
		return api.AdminResponse{}, api.Refuse(err.Error())
	}
	return api.AdminResponse{Epoch: number, Status: answer.StatusCode,
		ContentType: answer.Header.Get("Content-Type"), Body: answer.Body}, nil
}

// Report returns the agent's own part of a bug report.
func (b *Backend) Report(context.Context) ([]api.ReportPiece, error) {
	build := "not known"
	if info, ok := debug.ReadBuildInfo(); ok {
		build = info.String()
	}
	return []api.ReportPiece{{Name: "build.txt", Text: build},
		{Name: "xds-counters.txt", Text: fmt.Sprintf("%+v\n", b.XDS.Stats())}}, nil
}

// Quit requests an orderly stop and returns at once (status.Control).
func (b *Backend) Quit(context.Context) error {
	b.Agent.RequestStop()
	return nil
}
