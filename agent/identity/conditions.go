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

// The conditions. The sentence of a condition lists the secrets in that state.
const (
	CodeUnavailable = "secret-unavailable"      // Envoy waits for the secret
	CodeExpired     = "certificate-expired"     // Envoy still has the expired certificate
	CodeNotRenewed  = "certificate-not-renewed" // still valid, but its replacement fails
	CodeNotStored   = "certificate-not-stored"  // a copy on disk is missing or old
	// a certificate that an earlier run sealed cannot be used
	CodeNotRestored = "certificate-not-restored"
)

// failureGrace is how long a failure must last to be reported: while a certificate and its key are
// being replaced, the two files do not match.
const failureGrace = 2 * time.Second

// maxListed bounds the number of secrets in the sentence of a condition: Envoy may request any
// number of secrets.
const maxListed = 10

// update publishes what has changed, and raises and clears the conditions. Callers hold mu.
func (m *Manager) update() {
	found := map[string][]string{}
	missing := map[string]bool{}
	for _, s := range m.statuses() {
		if s.condition != "" {
			found[s.condition] = append(found[s.condition], m.label(s.name)+": "+s.sentence)
		}
		// A failed secret is published as absent at once, before failureGrace has passed.
		missing[s.name] = s.condition == CodeUnavailable || s.err != nil
	}
	severities := map[string]condition.Severity{
		CodeUnavailable: condition.Error, CodeExpired: condition.Error,
		CodeNotRenewed: condition.Warning,
	}
	for code, severity := range severities {
		if len(found[code]) == 0 {
			m.options.Conditions.Clear(code)
			continue
		}
		listed := found[code]
		if more := len(listed) - maxListed; more > 0 {
			listed = append(listed[:maxListed:maxListed], fmt.Sprintf("and %d more", more))
		}
		m.options.Conditions.Raise(code, severity, strings.Join(listed, "; "))
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

// statuses returns all secrets, including those of SetEnvoyFileCertificates, sorted by name.
// Callers hold mu.
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

// conditionOf returns the code and sentence of the condition to raise for a version of an entry, ""
// if there is no problem. version may be nil.
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
		if version.source == fromSpire {
			late = "SPIRE has not renewed it and it"
		}
		return CodeNotRenewed, late + " expires in " + coarse(left)
	}
	return "", ""
}

// coarse formats a duration, rounded down so that the sentence of a condition changes rarely.
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
