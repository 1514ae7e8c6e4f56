package config

import (
	"cmp"
	"strings"
	"unicode/utf8"
)

// text is the value of a key as TOML, the default as people spell it.
func (k key) text() string {
	if k.spelled != "" && k.isDefault() {
		return k.spelled
	}
	return render(k.get())
}

// defaultText is the default as people spell it.
func (k key) defaultText() string { return cmp.Or(k.spelled, render(k.value)) }

// originColumn is where Show says where a value came from.
const originColumn = 48

// Show is the effective configuration as TOML, each value with where it came from: file and line, "default", a variable
// of systemd's. It can be loaded again; it is for those who may read the files.
func (l *Loaded) Show() string { return l.show(false) }

// ShowEveryone is Show without what may be a secret.
func (l *Loaded) ShowEveryone() string { return l.show(true) }

func (l *Loaded) show(everyone bool) string {
	var b strings.Builder
	for _, t := range tables(l.Config) {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("[" + t.name + "]\n")
		for _, k := range t.keys {
			full := t.name + "." + k.name
			entries := leaves(k.get())
			if entries == nil {
				text := k.text()
				if everyone {
					text = k.shown()
				}
				showLine(&b, k.name+" = "+text, l.origin(full))
			}
			for _, entry := range entries {
				if everyone && k.conceal != nil {
					entry.text = render(concealed)
				}
				showLine(&b, k.name+"."+entry.key+" = "+entry.text, l.origin(full+"."+entry.key))
			}
		}
	}
	return b.String()
}

func showLine(b *strings.Builder, line, origin string) {
	b.WriteString(line)
	b.WriteString(strings.Repeat(" ", max(2, originColumn-utf8.RuneCountInString(line))))
	b.WriteString("# " + origin + "\n")
}

// origin says where the value of a dotted key came from.
func (l *Loaded) origin(key string) string {
	if position, said := l.Sources[key]; said {
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
