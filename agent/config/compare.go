package config

// Change is a difference between two configurations. Old and New are TOML as everyone may see it; "" where there is no such key (an entry of a
// table such as node.labels, or a probe).
type Change struct {
	Key    string // dotted
	Old    string
	New    string
	Effect Effect
}

// value is one effective value: a key's, or an entry's of a table of values.
type value struct {
	key       string // dotted
	text      string // TOML
	shown     string // TOML, as everyone may see it
	effect    Effect
	isDefault bool
	derived   bool // follows from another key, which tells its own changes
}

// values lists everything that a configuration says, in the order of the definitions; tables of values entry by entry.
func values(c *Config) []value {
	var all []value
	for _, t := range tables(c) {
		for _, k := range t.keys {
			v := value{key: t.name + "." + k.name, effect: k.effect, isDefault: k.isDefault(),
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
	}
	return all
}

// leaves lists the entries of a table of values with dotted keys; nil for an empty table and for anything else.
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
				all = append(all, value{key: bareOrQuoted(name) + "." + entry.key, text: entry.text})
			}
		}
	}
	return all
}

// Compare lists what changes from one configuration to another, in the order of the definitions; what is only in the old
// one comes last. A path that follows from paths.runtime_dir is not listed beside it.
func Compare(from, to *Config) []Change {
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

// Keep returns what a running agent makes of a new configuration: all of next, but the [start] keys (and what follows
// from them) as they run.
func Keep(running, next *Config) *Config {
	kept := *next
	from := map[string]key{}
	for _, t := range tables(running) {
		for _, k := range t.keys {
			from[t.name+"."+k.name] = k
		}
	}
	all := tables(&kept)
	var follow []key
	for _, t := range all {
		for _, k := range t.keys {
			if k.derived != nil && k.get() == k.derived() {
				follow = append(follow, k)
			}
		}
	}
	for _, t := range all {
		for _, k := range t.keys {
			if was, ok := from[t.name+"."+k.name]; ok && k.effect == Start {
				k.set(was.get())
			}
		}
	}
	for _, k := range follow {
		if k.effect != Start {
			k.set(k.derived())
		}
	}
	return &kept
}
