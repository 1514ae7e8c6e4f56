package config

import (
	"cmp"
	"strings"
)

// concealed replaces what may be a secret. The files are for root and group outrider, but problems
// with them and changes of them are in status, D-Bus and the journal. A key that may hold a secret
// has conceals in its definition: headers, node metadata, the user, query and fragment of a URL, a
// command. Other keys name files, addresses and numbers; Envoy's arguments are in /proc.
const concealed = "[redacted]"

// concealAll leaves nothing.
func concealAll(any) any { return concealed }

// concealURL leaves scheme, host and path of a URL, and what is none and has neither user nor query.
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

// notValid is the message about a concealed value where the problem has no other without it.
const notValid = "is not valid"

// concealProblem removes the value from a message: everyone may read it. It does so whatever the
// message says, so that no check has to know of secrets.
func (k key) concealProblem(p *problem) {
	if k.conceal == nil {
		return
	}
	p.message = cmp.Or(p.concealed, notValid)
}

// briefly is a value of the key, shortened, as everyone may see it.
func (k key) briefly(value any) string {
	if k.conceal != nil {
		value = k.conceal(value)
	}
	return brief(value)
}

// shown is the value of a key as TOML, as everyone may see it.
func (k key) shown() string {
	if k.conceal == nil || k.isDefault() {
		return k.text()
	}
	return render(k.conceal(k.get()))
}
