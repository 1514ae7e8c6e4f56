package backend

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/systemd"
)

// state returns the agent's state, which the private socket, D-Bus and the service manager show.
func (b *Backend) state() api.State {
	live, ok := b.Proxy.Epoch()
	_, _, busy := b.Reloader.Standing()
	switch {
	case b.Agent.Stopping():
		return api.StateStopping
	case !ok && !b.Proxy.Absent():
		return api.StateStarting
	case busy:
		return api.StateReloading
	case live.Drained:
		return api.StateDraining
	default:
		return api.StateRunning
	}
}

// Changed returns a channel that is closed when the epochs change. All other changes are events of
// the board.
func (b *Backend) Changed() <-chan struct{} { return b.Supervisor.Changed() }

// Reported returns the number of reloads whose start was published.
func (b *Backend) Reported() uint64 { return b.Reloader.Reported() }

// Summary returns the agent's state and its status sentence (systemd.Agent).
func (b *Backend) Summary(announced bool) (systemd.State, string) {
	state, sentence := b.summary(announced)
	return systemd.State(state), sentence
}

func (b *Backend) summary(announced bool) (api.State, string) {
	state := b.state()
	live, serves := b.Proxy.Epoch()
	switch {
	case state == api.StateStopping && serves:
		return state, fmt.Sprintf("stopping: epoch %d drains", live.Number)
	case state == api.StateStopping:
		return state, "stopping"
	case state == api.StateReloading:
		return state, b.Reloader.Phase()
	case !serves && !b.Proxy.Absent():
		return api.StateStarting, b.Proxy.NotLive()
	}
	if ready, reason := b.Proxy.Ready(); !ready && state == api.StateRunning && !announced {
		return api.StateStarting, reason
	}
	sentence := "serves without Envoy"
	if serves {
		sentence = doing(live)
	}
	conditions := b.Board.Conditions()
	if len(conditions) > 0 {
		sentence += fmt.Sprintf("; %s: %s", conditions[0].Severity, conditions[0].Sentence)
	}
	if len(conditions) > 1 {
		sentence += fmt.Sprintf(" (and %d more: outrider status)", len(conditions)-1)
	}
	return state, sentence
}

// doing describes the live epoch.
func doing(live epoch.Epoch) string {
	switch {
	case live.Drained && live.Awaits != "":
		return fmt.Sprintf("epoch %d drains until the undrain is done: %s", live.Number,
			live.Awaits)
	case live.Drained:
		return fmt.Sprintf("epoch %d drains on request", live.Number)
	default:
		return fmt.Sprintf("epoch %d serves", live.Number)
	}
}

// identities describes the secrets that are loaded or that could not be.
func (b *Backend) identities() []api.Identity {
	all := []api.Identity{}
	for _, s := range b.Identity.Secrets() {
		if s.NotAfter.IsZero() && s.Problem == "" {
			continue
		}
		all = append(all, api.Identity{
			Name: s.Name, Source: string(s.Source), Subject: s.Subject, SPIFFEID: s.SpiffeID,
			Issuer: s.Issuer, Serial: s.Serial,
			NotBefore: s.NotBefore, NotAfter: s.NotAfter, Renewal: s.Renewal,
			Problem: s.Problem, Names: s.Names, File: s.File, PresentedBy: s.Users,
		})
	}
	return all
}

// discoveryStatus returns the state of the upstream server, or of the embedded discovery server
// with the number of its problems.
func (b *Backend) discoveryStatus(problems []discovery.Problem) api.Discovery {
	switch d := b.Reloader.InForce().Config.Discovery; {
	case d.Address != "" && !d.Proxy:
		return api.Discovery{State: "direct", Address: d.Address, Since: b.Started,
			Detail: "Envoy connects to it itself"}
	case d.Address != "":
		return upstreamStatus(d.Address, b.Relay.Status())
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
	return api.Discovery{State: "embedded", Since: b.Started, Detail: detail}
}

// upstreamStatus describes the connection to the upstream server.
func upstreamStatus(address string, s relay.Status) api.Discovery {
	detail := s.Error
	if s.State == relay.Cached {
		detail = "configuration of " + s.Cache.Format(time.DateTime) + "; " + detail
	}
	return api.Discovery{State: string(s.State), Address: address, Since: s.Since, Detail: detail}
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
