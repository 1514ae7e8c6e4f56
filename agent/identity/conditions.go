package identity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity/pki"
)

// The conditions. Each lists the secrets in that state.
const (
	CodeUnavailable = "secret-unavailable"       // Envoy waits for it
	CodeExpired     = "certificate-expired"      // Envoy still has it
	CodeNotRenewed  = "certificate-not-renewed"  // valid, and its replacement fails
	CodeNotStored   = "certificate-not-stored"   // a copy on disk is missing or old
	CodeNotRestored = "certificate-not-restored" // the sealed one of an earlier run is of no use
)

// failureGrace is how long a failure is not reported: while the files of a pair are being replaced,
// they do not match.
const failureGrace = 2 * time.Second

// maxListed bounds the secrets in the sentence of a condition: Envoy chooses their names.
const maxListed = 10

// update publishes what has changed, and raises and clears the conditions. Callers hold mu.
func (m *Manager) update() {
	found := map[string][]string{}
	missing := map[string]bool{}
	for _, s := range m.statuses() {
		if s.condition != "" {
			found[s.condition] = append(found[s.condition], m.label(s.name)+": "+s.sentence)
		}
		// Envoy need not wait until a failure is reported.
		missing[s.name] = s.condition == CodeUnavailable || s.err != nil
	}
	severities := map[string]condition.Severity{
		CodeUnavailable: condition.Error, CodeExpired: condition.Error,
		CodeNotRenewed: condition.Warning,
	}
	for code, severity := range severities {
		if len(found[code]) == 0 {
			m.options.Board.Clear(code)
			continue
		}
		listed := found[code]
		if more := len(listed) - maxListed; more > 0 {
			listed = append(listed[:maxListed:maxListed], fmt.Sprintf("and %d more", more))
		}
		m.options.Board.Raise(code, severity, strings.Join(listed, "; "))
	}
	m.publish(missing)
}

// secretStatus is a secret with the condition that it is in.
type secretStatus struct {
	name                string
	version             *material // nil: none
	err                 error     // of the last attempt; nil: it succeeded
	condition, sentence string    // "": none
}

// statuses returns all secrets, with those that Envoy presents, sorted by name. Callers hold mu.
func (m *Manager) statuses() []secretStatus {
	names := slices.Collect(maps.Keys(m.entries))
	for name := range m.presented {
		if m.entries[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	now := m.options.Now()
	all := make([]secretStatus, len(names))
	for i, name := range names {
		e, version := m.entries[name], m.version(name)
		if e == nil {
			e, version = &entry{}, m.presented[name]
		}
		all[i] = secretStatus{name: name, version: version, err: e.failure.err}
		all[i].condition, all[i].sentence = conditionOf(e, version, now)
	}
	return all
}

// conditionOf returns the condition that a version of an entry is in and its sentence, "" if it is
// well.
func conditionOf(e *entry, version *material, now time.Time) (code, sentence string) {
	failure, err := "", e.failure.err
	if err != nil && now.Sub(e.failure.since).Abs() >= failureGrace {
		failure = err.Error()
	}
	state := e.state()
	if err == nil && version == nil && (state == obtaining || state == replacing) &&
		now.Sub(e.worker.started).Abs() >= failureGrace {
		failure = "no answer yet from where it comes from"
		if files := e.definition.files; !files.empty() {
			failure = cmp.Or(files.Cert, files.Root) + ": reading takes long; check its file system"
		}
	}
	if version == nil {
		if failure != "" {
			return CodeUnavailable, failure
		}
		return "", ""
	}
	from, until := version.validity()
	left := until.Sub(now)
	switch {
	case left <= 0:
		sentence = "expired on " + until.UTC().Format(time.DateTime) + " UTC"
		switch {
		case err != nil:
			sentence += ": " + err.Error()
		case !version.renewal.IsZero():
			sentence += "; check the clock"
		case version.source == FromFiles:
			sentence += "; replace the file"
		}
		return CodeExpired, sentence
	case failure != "":
		return CodeNotRenewed, failure + "; the current one expires in " + coarse(left)
	case version.pair != nil && version.renewal.IsZero() &&
		pki.EndsSoon(from, until, now):
		late := "the file has not been replaced and"
		if version.source == FromSpire {
			late = "SPIRE has not renewed it and it"
		}
		return CodeNotRenewed, late + " expires in " + coarse(left)
	}
	return "", ""
}

// coarse rounds down a duration such that a sentence with it changes rarely.
func coarse(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	case d >= 10*time.Minute:
		return fmt.Sprintf("%d minutes", d.Truncate(10*time.Minute)/time.Minute)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", d/time.Minute)
	}
	return "less than 2 minutes"
}
