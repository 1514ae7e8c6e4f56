package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
)

func (a *app) statusCommand() *cobra.Command {
	command := a.watched(&cobra.Command{
		Use:   "status",
		Short: "Show state, readiness, epochs, discovery, identities and the last reload",
		Args:  cobra.NoArgs,
	}, func(s api.Status, _ []string, encode func(value any) error) error {
		if a.json {
			return encode(s)
		}
		a.printStatus(s)
		return nil
	})
	var html bool
	command.Flags().BoolVar(&html, "html", false, "print one HTML page: epochs, clusters, certificates, problems")
	command.MarkFlagsMutuallyExclusive("watch", "html")
	show := command.RunE
	command.RunE = func(command *cobra.Command, arguments []string) error {
		if !html || a.json {
			return show(command, arguments)
		}
		client := a.client()
		defer client.Close()
		status, err := client.Status(command.Context())
		if err != nil {
			return err
		}
		return a.printStatusHTML(command.Context(), client, status)
	}
	return command
}

// printStatus prints one screen.
func (a *app) printStatus(s api.Status) {
	name := "outrider"
	if s.Instance != "" {
		name += "@" + s.Instance
	}
	ready := cell{"ready", green}
	if !s.Ready {
		ready = cell{"not ready", red}
		if s.ReadyReason != "" {
			ready.text += ": " + s.ReadyReason
		}
	}
	fmt.Fprintf(a.out, "%s  %s, %s\n", a.paint(cell{name, bold}), a.paint(cell{string(s.State), stateStyle(s.State)}), a.paint(ready))
	rows := [][]cell{{{"agent", dim}, text("%s, pid %d, up %s", s.Version, s.PID, a.since(s.Started))}}
	rows = append(rows, []cell{{"envoy", dim}, text("%s", envoyLine(s.Envoy))})
	rows = append(rows, a.epochLines(s.Epochs)...)
	rows = append(rows, []cell{{"discovery", dim}, text("%s", discoveryLine(s.Discovery))})
	rows = append(rows, a.identityLines(s.Identities)...)
	if s.Doing != "" {
		rows = append(rows, []cell{{"doing", dim}, text("%s", s.Doing)})
	}
	if s.LastReload != nil {
		rows = append(rows, a.reloadLines(*s.LastReload)...)
	}
	if len(s.PendingKeys) > 0 {
		rows = append(rows, []cell{{"pending", dim}, {"takes effect at the next start: " + strings.Join(s.PendingKeys, ", "), yellow}})
	}
	for i, c := range s.Conditions {
		label := cell{"conditions", dim}
		if i > 0 {
			label.text = ""
		}
		rows = append(rows, []cell{label, {fmt.Sprintf("%s %s (for %s): %s", c.Severity, c.Code, a.since(c.Since), c.Sentence),
			severityStyle(c.Severity)}})
	}
	writeAligned(a.out, wrapped(rows, "  ", a.width), "  ", a.paint)
}

func stateStyle(state api.State) style {
	switch state {
	case api.StateRunning:
		return green
	case api.StateFailed:
		return red
	}
	return yellow
}

func severityStyle(severity condition.Severity) style {
	switch severity {
	case condition.Error:
		return red
	case condition.Warning:
		return yellow
	}
	return plain
}

func envoyLine(e api.EnvoyStatus) string {
	if !e.Enabled {
		return "none: [envoy] enabled = false"
	}
	state := "not live"
	if e.Live {
		state = "live"
	}
	return strings.Join(nonEmpty(e.Version, e.Path, state), ", ")
}

func discoveryLine(d api.Discovery) string {
	line := d.State
	if d.Address != "" {
		line += " " + d.Address
	}
	if d.Detail != "" {
		line += ": " + d.Detail
	}
	return orDash(line)
}

// epochLines are the epochs that have not exited.
func (a *app) epochLines(epochs []api.Epoch) [][]cell {
	var rows [][]cell
	for _, e := range epochs {
		if e.State == api.EpochExited {
			continue
		}
		label := cell{"epochs", dim}
		if len(rows) > 0 {
			label.text = ""
		}
		rows = append(rows, []cell{label, {fmt.Sprintf("%d %s, pid %d, up %s, %s, %s", e.Number, e.State, e.PID, a.since(e.Started),
			count(int(e.Connections), "connection", "connections"), size(e.MemoryBytes)), epochStyle(e.State)}})
	}
	if len(rows) == 0 {
		return [][]cell{{{"epochs", dim}, text("none")}}
	}
	return rows
}

func (a *app) identityLines(identities []api.Identity) [][]cell {
	if len(identities) == 0 {
		return [][]cell{{{"identities", dim}, text("none")}}
	}
	var rows [][]cell
	for i, identity := range identities {
		label := cell{"identities", dim}
		if i > 0 {
			label.text = ""
		}
		rows = append(rows, []cell{label, text("%s from %s, valid for %s", identity.Name, identity.Source, age(identity.NotAfter.Sub(a.now())))})
	}
	return rows
}

func (a *app) reloadLines(r api.LastReload) [][]cell {
	line := fmt.Sprintf("%s, %s ago", r.Outcome, a.since(r.Time))
	if r.Epoch != nil {
		line += fmt.Sprintf(", epoch %d", *r.Epoch)
	}
	colour := plain
	if r.Outcome == api.OutcomeRefused {
		colour = red
	}
	rows := [][]cell{{{"last reload", dim}, {line, colour}}}
	for _, reason := range r.Reasons {
		rows = append(rows, []cell{{}, {reason, colour}})
	}
	return rows
}

func nonEmpty(parts ...string) []string {
	var all []string
	for _, part := range parts {
		if part != "" {
			all = append(all, part)
		}
	}
	return all
}
