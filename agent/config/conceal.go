package config

import "strings"

// concealed stands in place of what not everyone may see. The files are for root and group outrider; what they say is shown to everyone
// (outrider config show and diff, conditions), and a key that takes what may be a secret says so in its definition: headers,
// node metadata, the user and the query of a URL, the arguments of a command. Keys of other kinds name files, addresses and
// numbers; Envoy's arguments are in /proc for everyone.
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
	authority, path, _ := strings.Cut(rest, "?")
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

// concealArguments leaves the program of a command.
func concealArguments(value any) any {
	list, isList := value.([]string)
	switch {
	case !isList:
		return concealed
	case len(list) < 2:
		return list
	default:
		return []string{list[0], concealed}
	}
}

// concealProblem takes what may be a secret out of what is told of a wrong value: everyone may read that.
func (k key) concealProblem(p *problem, raw any) {
	if k.conceal == nil {
		return
	}
	if entries, ok := raw.(map[string]any); ok {
		for _, entry := range entries {
			switch entry.(type) {
			case int64, float64, bool:
				continue
			}
			p.message = strings.ReplaceAll(p.message, brief(entry), concealed)
		}
		return
	}
	p.message = strings.ReplaceAll(p.message, brief(raw), k.briefly(raw))
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
