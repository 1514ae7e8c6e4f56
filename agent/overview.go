package agent

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/api/operations"
	"outrider.org/outrider/agent/capture"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/hostconflict"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/systemd"
)

// overview collects the state of all components.
type overview struct {
	state    *reloadState
	life     *agentEnd
	maker    *specMaker
	version  string
	instance string
	started  time.Time
	board    *condition.Registry
	presence *hostconflict.ReachableTime
	proxy    *epoch.Proxy
	relay    *relay.Server
	health   *health.Checker
	capture  *capture.Controller
	epochs   operations.EpochOperations
	mesh     *operations.MeshOperations
}

// Status returns the combined state of all components (api.Backend).
func (o *overview) Status(ctx context.Context) (api.Status, error) {
	status := o.State(ctx)
	status.Epochs = o.epochs.EpochsWithResourceUsage(ctx)
	report := o.mesh.ProblemReport(ctx,
		o.mesh.Discovery.Stats().Services <= operations.MaxServicesForFreshStats)
	status.Discovery = o.discoveryStatus(report.Problems)
	status.Problems = operations.MeshProblems(
		report.Problems[:min(len(report.Problems), api.MaxMeshProblems)])
	o.addOutside(&status)
	for _, p := range report.FailingEndpoints {
		status.FailingBackends = append(status.FailingBackends, api.FailingBackend{
			Cluster: p.Cluster, Host: p.Host(), Address: p.Address, Cause: p.Cause, Since: p.Since,
			Failures: p.Requests})
	}
	return status, nil
}

// binary returns the Envoy binary of the configuration in force. Before the first configuration is
// in force, it returns the binary that was inspected last, or nil.
func (o *overview) binary() *envoy.Binary {
	if binary := o.state.binary.Load(); binary != nil {
		return binary
	}
	return o.maker.binary.Load()
}

// State is like Status, without memory and connections of the epochs and without problems of the
// mesh (bus.Backend).
func (o *overview) State(ctx context.Context) api.Status {
	ready, reason := o.proxy.ReadyContext(ctx)
	current := o.state.InForce()
	last, pending, _ := o.state.Summary()
	status := api.Status{
		Version: o.version, Instance: o.instance, PID: os.Getpid(),
		Started: o.started, ReachableSince: o.presence.Since(),
		State: o.phase(), Ready: ready, NotReadyReason: reason,
		Envoy:      api.EnvoyStatus{Enabled: current.Config.Envoy.Enabled},
		Epochs:     o.epochs.Supervisor.Epochs(),
		Discovery:  o.discoveryStatus(nil),
		Capture:    string(o.capture.State().State),
		Identities: o.identities(),
		LastReload: last, ConfigFiles: current.Files, ConfigHash: current.Hash,
		KeysPendingRestart: pending, Claims: append(current.Config.Claims(),
			o.mesh.Ports.Claims()...),
		Conditions: o.board.Conditions(), ReloadPhase: o.state.Phase(),
	}
	if live, ok := o.proxy.Epoch(); ok {
		status.CurrentEpoch, status.Envoy.Live = &live.Number, true
	}
	if h := o.health.Status(); h.State != health.StateOff {
		status.Health = &api.Health{State: string(h.State), Since: h.Since, Reason: h.Reason}
	}
	if binary := o.binary(); binary != nil {
		status.Envoy.Path, status.Envoy.Version = binary.Path, binary.Version
	}
	return status
}

// phase returns the agent's state, which the private socket, D-Bus and the service manager show.
func (o *overview) phase() api.AgentState {
	live, ok := o.proxy.Epoch()
	_, _, busy := o.state.Summary()
	switch {
	case o.life.stopping.Load():
		return api.StateStopping
	case !ok && !o.proxy.WithoutEnvoy():
		return api.StateStarting
	case busy:
		return api.StateReloading
	case live.DrainRequested:
		return api.StateDraining
	default:
		return api.StateRunning
	}
}

// ReportedReloads returns the number of reloads whose start was published (systemd.AgentState).
func (o *overview) ReportedReloads() uint64 { return o.state.Reported() }

// Summary returns the agent's state and its status sentence (systemd.AgentState).
func (o *overview) Summary(announced bool) (systemd.State, string) {
	state, sentence := o.summary(announced)
	return systemd.State(state), sentence
}

func (o *overview) summary(announced bool) (api.AgentState, string) {
	state := o.phase()
	live, serves := o.proxy.Epoch()
	switch {
	case state == api.StateStopping && serves:
		return state, fmt.Sprintf("stopping: epoch %d drains", live.Number)
	case state == api.StateStopping:
		return state, "stopping"
	case state == api.StateReloading:
		return state, o.state.Phase()
	case !serves && !o.proxy.WithoutEnvoy():
		return api.StateStarting, o.proxy.NotLiveReason()
	}
	if ready, reason := o.proxy.Ready(); !ready && state == api.StateRunning && !announced {
		return api.StateStarting, reason
	}
	sentence := "serves without Envoy"
	if serves {
		sentence = doing(live)
	}
	conditions := o.board.Conditions()
	if len(conditions) > 0 {
		sentence += fmt.Sprintf("; %s: %s", conditions[0].Severity, conditions[0].Sentence)
	}
	if len(conditions) > 1 {
		sentence += fmt.Sprintf(" (and %d more: outrider status)", len(conditions)-1)
	}
	return state, sentence
}

// doing returns the part of the status sentence that describes the live epoch.
func doing(live epoch.Epoch) string {
	switch {
	case live.DrainRequested && live.NextEpochWaitReason != "":
		return fmt.Sprintf("epoch %d drains until the undrain is done: %s", live.Number,
			live.NextEpochWaitReason)
	case live.DrainRequested:
		return fmt.Sprintf("epoch %d drains on request", live.Number)
	default:
		return fmt.Sprintf("epoch %d serves", live.Number)
	}
}

// identities describes the secrets that are loaded or that could not be.
func (o *overview) identities() []api.Identity {
	all := []api.Identity{}
	for _, s := range o.mesh.Identity.Secrets() {
		if s.NotAfter.IsZero() && s.Problem == "" {
			continue
		}
		all = append(all, api.Identity{
			Name: s.Name, Source: string(s.Source), Subject: s.Subject, SPIFFEID: s.SpiffeID,
			Issuer: s.Issuer, Serial: s.Serial,
			NotBefore: s.NotBefore, NotAfter: s.NotAfter, Renewal: s.Renewal,
			Problem: s.Problem, Names: s.Names, File: s.File, PresentedBy: s.Users,
			StorageState: string(s.Stored),
		})
	}
	return all
}

// discoveryStatus returns the state of the upstream server, or of the embedded discovery server
// with the number of its problems.
func (o *overview) discoveryStatus(problems []discovery.Problem) api.Discovery {
	switch d := o.state.InForce().Config.Discovery; {
	case len(d.Addresses) > 0 && !d.ProxyXDS:
		return api.Discovery{State: "direct", Address: d.Addresses[0], Since: o.started,
			Detail: "Envoy connects to it itself"}
	case len(d.Addresses) > 0:
		return upstreamStatus(o.relay.Status())
	}
	var errors, warnings int
	for _, p := range problems {
		switch p.Severity {
		case condition.Error:
			errors++
		case condition.Warning:
			warnings++
		}
	}
	detail := strings.Join(slices.DeleteFunc([]string{counted(errors, "error"),
		counted(warnings, "warning")}, func(s string) bool { return s == "" }), ", ")
	if detail != "" {
		detail += "; run \"outrider mesh check\" for details"
	}
	return api.Discovery{State: "embedded", Since: o.started, Detail: detail}
}

// upstreamStatus describes the connection to the upstream server.
func upstreamStatus(s relay.Status) api.Discovery {
	detail := s.Error
	if s.State == relay.Cached {
		detail = "configuration of " + s.CacheAcceptedAt.Format(time.DateTime) + "; " + detail
	}
	d := api.Discovery{State: string(s.State), Address: s.Address, Since: s.Since, Detail: detail}
	for _, other := range s.UnusedAddresses {
		d.Unused = append(d.Unused, api.UnusedAddress(other))
	}
	return d
}

// counted returns a number with its noun, or "" for 0.
func counted(n int, noun string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// maxOlder bounds the number of peers of older connections that a status names.
const maxOlder = 20

// addOutside adds to a status the ports that are excluded from mutual TLS on purpose, and the
// connections that are older than the capture rules, which therefore do not pass through Envoy.
func (o *overview) addOutside(status *api.Status) {
	for _, o := range o.mesh.Exposure.Report().OutsideMutualTLS {
		status.OutsideMutualTLS = append(status.OutsideMutualTLS, api.PortOutsideMutualTLS(o))
	}
	older := o.mesh.Exposure.PreInterceptionConnections()
	for _, o := range older[:min(len(older), maxOlder)] {
		status.PreInterceptionConnections = append(status.PreInterceptionConnections,
			api.PreInterceptionConnections{
				Port: o.Port, Peer: o.Peer, Count: o.Count})
	}
	rest := map[uint16]int{}
	for _, o := range older[min(len(older), maxOlder):] {
		rest[o.Port] += o.Count
	}
	for _, port := range slices.Sorted(maps.Keys(rest)) {
		status.PreInterceptionConnections = append(status.PreInterceptionConnections,
			api.PreInterceptionConnections{Port: port, Count: rest[port]})
	}
}
