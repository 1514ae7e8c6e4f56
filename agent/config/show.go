package config

import (
	"cmp"
	"strings"
	"unicode/utf8"
)

// text returns the value of a key as TOML. A default has its preferred spelling ("5m", not "300s").
func (k key) text() string {
	if k.spelled != "" && k.isDefault() {
		return k.spelled
	}
	return render(k.get())
}

// defaultText returns the default in its preferred spelling.
func (k key) defaultText() string { return cmp.Or(k.spelled, render(k.value)) }

// originColumn is the column at which TOMLWithSources writes the origin of a value.
const originColumn = 48

// TOMLWithSources returns the effective configuration as TOML, each value with its origin: file and
// line, "default" or a systemd variable. Load accepts the result. It contains secrets, so only
// readers of the configuration files may see it.
func (l *Loaded) TOMLWithSources() string { return l.show(false) }

// RedactedTOMLWithSources is like TOMLWithSources but redacts secrets.
func (l *Loaded) RedactedTOMLWithSources() string { return l.show(true) }

func (l *Loaded) show(everyone bool) string {
	var b strings.Builder
	for _, t := range tables(l.Config) {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("[" + t.name + "]\n")
		for _, v := range t.values() {
			text := v.text
			if everyone {
				text = v.shown
			}
			name := strings.TrimPrefix(v.key, t.name+".")
			showLine(&b, name+" = "+text, l.origin(v.key))
		}
	}
	return b.String()
}

func showLine(b *strings.Builder, line, origin string) {
	b.WriteString(line)
	b.WriteString(strings.Repeat(" ", max(2, originColumn-utf8.RuneCountInString(line))))
	b.WriteString("# " + origin + "\n")
}

// origin returns the origin of the value of a dotted key.
func (l *Loaded) origin(key string) string {
	if position, said := l.Positions[key]; said {
		return position.String()
	}
	if from := l.derived[key]; from != "" {
		if from == "default" || strings.HasPrefix(from, "$") {
			return from
		}
		return "default, from " + from
	}
	return "default"
}
