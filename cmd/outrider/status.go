package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

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
	command.Flags().BoolVar(&html, "html", false,
		"print one HTML page: epochs, clusters, certificates, problems")
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

// details is a list of labelled rows. A repeated label is shown once.
type details struct {
	rows [][]cell
	last string
}

func (d *details) add(label string, colour style, format string, arguments ...any) {
	shown := cell{label, dim}
	if label == d.last {
		shown.text = ""
	}
	d.last = label
	d.rows = append(d.rows, []cell{shown, {fmt.Sprintf(format, arguments...), colour}})
}

// printStatus prints the status on one screen.
func (a *app) printStatus(s api.Status) {
	ready := cell{"ready", green}
	if !s.Ready {
		ready = cell{strings.Join(nonEmpty("not ready", s.NotReadyReason), ": "), red}
	}
	fmt.Fprintf(a.out, "%s  %s, %s\n", a.paint(cell{agentName(s), bold}),
		a.paint(cell{string(s.State), stateStyle(s.State)}), a.paint(ready))
	var d details
	d.add("agent", plain, "%s, pid %d, up %s", s.Version, s.PID, a.since(s.Started))
	d.add("envoy", plain, "%s", envoyLine(s.Envoy))
	a.addEpochs(&d, s.Epochs)
	d.add("discovery", plain, "%s", discoveryLine(s.Discovery))
	for _, other := range s.Discovery.Unused {
		d.add("discovery", dim, "%s", a.unusedLine(other))
	}
	if h := s.Health; h != nil {
		d.add("health", healthStyle(h.State), "%s",
			strings.Join(nonEmpty(h.State+" for "+a.since(h.Since), h.Reason), ": "))
	}
	a.addIdentities(&d, s.Identities)
	if s.ReloadPhase != "" {
		d.add("doing", plain, "%s", s.ReloadPhase)
	}
	if s.LastReload != nil {
		a.addReload(&d, *s.LastReload, s.Conditions)
	}
	if len(s.KeysPendingRestart) > 0 {
		d.add("pending", yellow, "takes effect at the next start: %s",
			strings.Join(s.KeysPendingRestart, ", "))
	}
	for _, o := range s.OutsideMutualTLS {
		d.add("outside mutual TLS", plain, "port %d (%s)", o.Port, o.Reason)
	}
	for _, o := range s.PreInterceptionConnections {
		from := "other hosts"
		if o.Peer.IsValid() {
			from = o.Peer.String()
		}
		d.add("past mutual TLS", yellow, "port %d: %s from %s, older than the rules", o.Port,
			count(o.Count, "connection", "connections"), from)
	}
	for _, c := range s.Conditions {
		d.add("conditions", severityStyle(c.Severity), "%s %s (for %s): %s", c.Severity, c.Code,
			a.since(c.Since), c.Sentence)
	}
	writeAligned(a.out, wrapped(d.rows, "  ", a.width), "  ", a.paint)
}

// addIdentities adds rows for the identities of the workload, and for the certificates that Envoy
// presents to clients: a row for each that is missing, expired or expires soon, and one with the
// number of the others.
func (a *app) addIdentities(d *details, identities []api.Identity) {
	none, fine, first := true, 0, api.Identity{}
	for _, i := range identities {
		label := "certificates"
		if i.Name == "default" || i.Name == "ROOTCA" {
			label, none = "identities", false
		}
		if i.NotAfter.IsZero() {
			d.add(label, red, "%s missing", titleOf(i))
			continue
		}
		left := a.left(i)
		switch {
		case left.style == red:
			d.add(label, red, "%s (%s) EXPIRED on %s", titleOf(i), identityOf(i),
				i.NotAfter.UTC().Format(time.DateTime+" MST"))
		case label == "identities" || left.style == yellow:
			from := ""
			if i.Source != "" {
				from = " from " + i.Source
			}
			d.add(label, plain, "%s%s, valid for %s", titleOf(i), from, left.text)
		default:
			if fine++; fine == 1 || i.NotAfter.Before(first.NotAfter) {
				first = i
			}
		}
	}
	if fine > 0 {
		d.add("certificates", plain, "%d valid, the first (%s) for %s", fine, titleOf(first),
			a.left(first).text)
	}
	if none {
		d.add("identities", plain, "none (of this host, for mutual TLS)")
	}
}

func agentName(s api.Status) string {
	return strings.Join(nonEmpty("outrider", s.Instance), "@")
}

func stateStyle(state api.AgentState) style {
	switch state {
	case api.StateRunning:
		return green
	case api.StateFailed:
		return red
	}
	return yellow
}

func healthStyle(state string) style {
	switch state {
	case "healthy":
		return green
	case "unhealthy":
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
	if line == "embedded" {
		line = "embedded, from the mesh files of this host"
	}
	if d.Address != "" {
		line += " " + d.Address
	}
	if d.Detail != "" {
		line += ": " + d.Detail
	}
	return cmp.Or(line, "-")
}

// unusedLine returns a line that says why an address of the discovery server is not in use.
func (a *app) unusedLine(u api.UnusedAddress) string {
	if u.Error == "" {
		return "not in use " + u.Address
	}
	return "not in use " + u.Address + ": " + u.Error + " (" + a.since(u.Since) + " ago)"
}

// addEpochs adds the epochs that have not exited.
func (a *app) addEpochs(d *details, epochs []api.Epoch) {
	none := true
	for _, e := range epochs {
		if e.State != api.EpochExited {
			none = false
			d.add("epochs", epochStyle(e.State), "%d %s, pid %d, up %s, %s, %s", e.Number, e.State,
				e.PID, a.since(e.Started), count(int(e.Connections), "connection", "connections"),
				size(e.MemoryBytes))
		}
	}
	if none {
		d.add("epochs", plain, "none")
	}
}

// outcomes are the descriptions of the outcomes of reloads.
var outcomes = map[api.ReloadOutcome]string{
	api.OutcomeRestarted: "a new Envoy was started",
	api.OutcomeApplied:   "applied, without a new Envoy",
	api.OutcomeUnchanged: "nothing had changed",
	api.OutcomeRefused:   "refused",
}

// addReload adds rows for the last reload. It omits reasons that an active condition contains.
func (a *app) addReload(d *details, r api.LastReload, conditions []condition.Condition) {
	line := fmt.Sprintf("%s, %s ago", cmp.Or(outcomes[r.Outcome], string(r.Outcome)),
		a.since(r.Time))
	if r.Epoch != nil {
		line += fmt.Sprintf(", epoch %d serves", *r.Epoch)
	}
	colour := plain
	if r.Outcome == api.OutcomeRefused {
		colour = red
	}
	d.add("last reload", colour, "%s", line)
	for _, reason := range r.Reasons {
		if !slices.ContainsFunc(conditions, func(c condition.Condition) bool {
			return strings.Contains(c.Sentence, reason)
		}) {
			d.add("last reload", colour, "%s", reason)
		}
	}
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
