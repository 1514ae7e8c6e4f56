package config

import (
	"cmp"
	"strings"
)

// concealed replaces values that may be secret. Only root and group outrider may read configuration
// files, but problems and changes of keys appear in the status, on D-Bus and in the journal. Keys
// that may hold a secret are defined with key.conceals: headers, node metadata, commands, and the
// user, query and fragment of URLs. Other keys hold file names, addresses and numbers. Envoy's
// arguments are visible in /proc anyway.
const concealed = "[redacted]"

// concealAll redacts the whole value.
func concealAll(any) any { return concealed }

// concealURL redacts the user, query and fragment of a URL. Text that is not a URL is treated the
// same way.
func concealURL(value any) any {
	text, isText := value.(string)
	if !isText {
		return value
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		scheme, rest = "", text
	}
	authority, path := rest, ""
	if end := strings.IndexAny(rest, "?#"); end >= 0 {
		authority, path = rest[:end], rest[end+1:]
	}
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		authority = concealed + authority[at:]
	}
	if path != "" {
		authority += "?" + concealed
	}
	if found {
		scheme += "://"
	}
	return scheme + authority
}

// notValid is the default message for a redacted value.
const notValid = "is not valid"

// concealProblem replaces the message of a problem with one that omits the value. It applies to
// every message, so checks need not know which keys are secret.
func (k key) concealProblem(p *problem) {
	if k.conceal == nil {
		return
	}
	p.message = cmp.Or(p.concealed, notValid)
}

// shown returns the value of a key as TOML without secrets.
func (k key) shown() string {
	if k.conceal == nil || k.isDefault() {
		return k.text()
	}
	return render(k.conceal(k.get()))
}
