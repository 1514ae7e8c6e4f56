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

// settle is how long a failure is not reported: while the files of a pair are being replaced, they
// do not match.
const settle = 2 * time.Second

// maxListed bounds the secrets in the sentence of a condition: Envoy chooses their names.
const maxListed = 10

// judge publishes what has changed, and raises and clears the conditions. Callers hold mu.
func (m *Manager) judge() {
	now := m.options.Now()
	found := map[string][]string{}
	missing := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(m.presented)) {
		if m.entries[name] != nil {
			continue
		}
		if code, sentence := verdict(&entry{}, m.presented[name], now); code != "" {
			found[code] = append(found[code], m.label(name)+": "+sentence)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		if code, sentence := verdict(m.entries[name], m.version(name), now); code != "" {
			found[code] = append(found[code], m.label(name)+": "+sentence)
			missing[name] = code == CodeUnavailable
		}
		if m.entries[name].err != nil { // reported later, but Envoy need not wait for that
			missing[name] = true
		}
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

// verdict returns the condition that a version of an entry is in and its sentence, "" if it is
// well.
func verdict(e *entry, version *material, now time.Time) (code, sentence string) {
	failure := ""
	if e.err != nil && now.Sub(e.failing).Abs() >= settle {
		failure = e.err.Error()
	}
	if e.err == nil && version == nil && e.worker != nil && now.Sub(e.started).Abs() >= settle {
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
		case e.err != nil:
			sentence += ": " + e.err.Error()
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
