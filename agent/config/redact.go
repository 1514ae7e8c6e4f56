package config

import (
	"maps"
	"strings"

	"github.com/BurntSushi/toml"
)

// RedactText returns the keys and values of a configuration file, one key per line, without
// comments. The values of concealed and unknown keys are redacted. If text is not valid TOML, the
// error does not quote it.
func RedactText(text string) (string, error) {
	var raw map[string]any
	if _, err := toml.Decode(text, &raw); err != nil {
		return "", syntaxError("", newIndex(text), err)
	}
	known := maps.Collect(settings(defaultsWithProbe()))
	var b strings.Builder
	var walk func(name string, path []string, value any)
	walk = func(name string, path []string, value any) {
		k, isKey := known[name]
		below, isTable := value.(map[string]any)
		switch {
		case isKey && k.conceal == nil:
			b.WriteString(dotted(path) + " = " + render(value) + "\n")
		case isTable: // names of entries are not secret
			for _, entry := range sortedKeys(below) {
				next := strings.TrimPrefix(name+"."+entry, ".")
				if name == probesTable {
					next = probesTable + ".NAME"
				}
				walk(next, child(path, entry), below[entry])
			}
		default:
			b.WriteString(dotted(path) + " = " + render(concealed) + "\n")
		}
	}
	walk("", nil, raw)
	return b.String(), nil
}

// SecretKeys returns the keys whose values are redacted, in the order of the definitions, with NAME
// as the name of a probe.
func SecretKeys() []string {
	var all []string
	for name, k := range settings(defaultsWithProbe()) {
		if k.conceal != nil {
			all = append(all, name)
		}
	}
	return all
}
