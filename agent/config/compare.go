package config

import "maps"

// Change is a difference between two configurations. Old and New are TOML without secrets. They are
// "" if the key is absent (an entry of a table such as node.labels, or a probe).
type Change struct {
	Key    string `json:"key"` // dotted TOML key
	Old    string `json:"old"`
	New    string `json:"new"`
	Effect Effect `json:"effect"`
}

// value is the effective value of a key, or of an entry in a table whose entries the user names,
// such as node.labels.
type value struct {
	key       string // dotted TOML key
	text      string // TOML
	shown     string // TOML, without secrets
	effect    Effect
	isDefault bool
	derived   bool // computed from another key; only the change of that key is reported
}

// values returns all values of tables in the order of the definitions.
func values(tables []table) []value {
	var all []value
	for _, t := range tables {
		all = append(all, t.values()...)
	}
	return all
}

// values returns the values of a table. A key whose value is itself a table, such as node.labels,
// yields one value per entry.
func (t table) values() []value {
	var all []value
	for _, k := range t.keys {
		v := value{key: t.keyName(k), effect: k.effect, isDefault: k.isDefault(),
			derived: k.derived != nil && k.get() == k.derived()}
		entries := leaves(k.get())
		if entries == nil {
			v.text, v.shown = k.text(), k.shown()
			all = append(all, v)
		}
		for _, entry := range entries {
			one := v
			one.key, one.text, one.shown = v.key+"."+entry.key, entry.text, entry.text
			if k.conceal != nil {
				one.shown = render(concealed)
			}
			all = append(all, one)
		}
	}
	return all
}

// leaves returns the entries of a table such as node.labels, with dotted keys. It returns nil for
// an empty table and for a value that is not a table.
func leaves(table any) []value {
	var all []value
	switch table := table.(type) {
	case map[string]string:
		for _, name := range sortedKeys(table) {
			all = append(all, value{key: bareOrQuoted(name), text: render(table[name])})
		}
	case map[string]any:
		for _, name := range sortedKeys(table) {
			below := leaves(table[name])
			if below == nil {
				all = append(all, value{key: bareOrQuoted(name), text: render(table[name])})
			}
			for _, entry := range below {
				all = append(all,
					value{key: bareOrQuoted(name) + "." + entry.key, text: entry.text})
			}
		}
	}
	return all
}

// Compare returns the changes from one configuration to another, in the order of the definitions,
// followed by keys that exist only in the old one. Paths derived from paths.runtime_dir are
// omitted.
func Compare(from, to *Config) []Change { return compare(tables(from), tables(to)) }

func compare(from, to []table) []Change {
	before := map[string]value{}
	oldValues := values(from)
	for _, v := range oldValues {
		before[v.key] = v
	}
	var changes []Change
	after := map[string]bool{}
	for _, v := range values(to) {
		after[v.key] = true
		was, known := before[v.key]
		if v.text == was.text || v.derived && was.derived || !known && v.isDefault {
			continue
		}
		changes = append(changes, Change{v.key, was.shown, v.shown, v.effect})
	}
	for _, v := range oldValues {
		if !after[v.key] && !v.isDefault {
			changes = append(changes, Change{v.key, v.shown, "", v.effect})
		}
	}
	return changes
}

// RetainRestartKeys returns the configuration of a running agent after it has loaded next: the
// values of next, but running's values for keys that need a restart (effect start). Paths that
// derive from other keys are computed from the result.
func RetainRestartKeys(running, next *Config) *Config {
	retained := *next
	keep(tables(running), tables(&retained))
	return &retained
}

// keep sets the keys of next that need a restart to their values in running.
func keep(running, next []table) {
	from := maps.Collect(settingsOf(running))
	var dependents []key
	for _, k := range settingsOf(next) {
		if k.derived != nil && k.get() == k.derived() {
			dependents = append(dependents, k)
		}
	}
	for name, k := range settingsOf(next) {
		if was, ok := from[name]; ok && k.effect == Start {
			k.set(was.get())
		}
	}
	for _, k := range dependents {
		if k.effect != Start {
			k.set(k.derived())
		}
	}
}
