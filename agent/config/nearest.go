package config

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"outrider.org/outrider/agent/spelling"
)

// enumerate joins words with commas and "and".
func enumerate(items []string) string {
	if len(items) < 2 {
		return strings.Join(items, "")
	}
	return strings.Join(items[:len(items)-1], ", ") + " and " + items[len(items)-1]
}

// nearest returns the candidate whose spelling is most similar to word, else one that begins with
// word, else "".
func nearest(word string, candidates []string) string {
	const shortestBeginning = 4
	word = normal(word)
	near := spelling.NearestWord(word, candidates)
	begins := func(candidate string) bool { return strings.HasPrefix(candidate, word) }
	if i := slices.IndexFunc(candidates, begins); near == "" && i >= 0 &&
		len(word) >= shortestBeginning {
		return candidates[i]
	}
	return near
}

var innerCapital = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// normal converts drainDuration and drain-duration to drain_duration, as keys are spelled.
func normal(word string) string {
	word = innerCapital.ReplaceAllString(word, "${1}_${2}")
	return strings.ToLower(strings.ReplaceAll(word, "-", "_"))
}

// vocabulary holds the names of all definitions, for suggestions about unknown keys and tables.
type vocabulary struct {
	tables []string            // dotted names; probes are status.probe.NAME
	keys   map[string][]string // table → names of its keys
	roles  map[string]string   // normalised pilot-agent name → dotted key
}

func newVocabulary(tables []table, lists []string) *vocabulary {
	v := &vocabulary{tables: lists, keys: map[string][]string{}, roles: map[string]string{}}
	for _, t := range tables {
		if t.name != "" && !t.list {
			v.tables = append(v.tables, t.name)
		}
		for _, k := range t.keys {
			v.keys[t.name] = append(v.keys[t.name], k.name)
			for role := range strings.SplitSeq(k.role, ", ") {
				if role != "" {
					v.roles[normal(strings.TrimPrefix(role, "--"))] = t.keyName(k)
				}
			}
		}
	}
	return v
}

// name returns the dotted name of a table with NAME in place of a probe's name.
func (v *vocabulary) name(table []string) string {
	if len(table) == 3 && dotted(table[:2]) == probesTable {
		return probesTable + ".NAME"
	}
	return dotted(table)
}

// fewKeys is the number of keys up to which a table counts as small. For an unknown key in a small
// table, the message lists all keys of the table, and suggests no keys of other tables.
const fewKeys = 8

// unknown returns the problem of a key or table that parent does not define; parent is empty at the
// top level. below is the content of a table, or nil for a key.
func (v *vocabulary) unknown(parent []string, name string, below map[string]any) *problem {
	table := v.name(parent)
	isTable := below != nil
	if isTable && table == probesTable+".NAME" && nearest(name, v.keys[table]) == "" {
		quoted := dotted(child(parent[:2], parent[2]+"."+name))
		return problemf("a name with a dot is written in quotes: ["+quoted+"]",
			"there is no such table")
	}
	what := "there is no such key"
	var guesses []string
	if isTable {
		what = "there is no such table"
		if near := cmp.Or(v.table(table, name), v.tableWith(below)); near != "" {
			return problemf("did you mean ["+near+"]?", "%s", what)
		}
	}
	if near := nearest(name, v.keys[table]); near != "" {
		guesses = []string{dotted(child(parent, near))}
	} else if !isTable {
		guesses = v.elsewhere(name, v.keys[table])
	}
	switch {
	case guesses != nil:
		return problemf("did you mean "+strings.Join(guesses, " or ")+"?", "%s", what)
	case v.keys[table] != nil && table != "":
		return problemf("["+dotted(parent)+"] has "+enumerate(v.keys[table]), "%s", what)
	default:
		return problemf("the tables are "+enumerate(v.tables), "%s", what)
	}
}

// tableWith returns the table that defines all of keys, the content of an unknown table. It returns
// "" if no table or more than one does.
func (v *vocabulary) tableWith(keys map[string]any) string {
	found := ""
	for _, t := range v.tables {
		has := len(keys) > 0
		for key := range keys {
			has = has && slices.Contains(v.keys[t], normal(key))
		}
		switch {
		case has && found != "":
			return ""
		case has:
			found = t
		}
	}
	return found
}

// table returns the table whose dotted name is most similar to that of the unknown table, else one
// whose dotted name ends with name, else "".
func (v *vocabulary) table(parent, name string) string {
	full := name
	if parent != "" {
		full = parent + "." + name
	}
	if near := nearest(full, v.tables); near != "" {
		return near
	}
	for _, t := range v.tables {
		if strings.HasSuffix(t, "."+normal(name)) {
			return t
		}
	}
	return ""
}

// elsewhere returns the keys to suggest for an unknown key, from all tables: the key that
// corresponds to a pilot-agent flag or variable of that name, else keys of the same name, else, if
// the table is unknown as well (own is nil), keys of similar names. own are the keys of the table.
// If there are at most fewKeys, the message lists them, and elsewhere returns nil.
func (v *vocabulary) elsewhere(name string, own []string) []string {
	if key := v.roles[normal(name)]; key != "" {
		return []string{key}
	}
	if own != nil && len(own) <= fewKeys {
		return nil
	}
	var same, near []string
	for _, t := range v.tables {
		for _, k := range v.keys[t] {
			if k == normal(name) {
				same = append(same, t+"."+k)
			}
		}
		if k := nearest(name, v.keys[t]); k != "" && own == nil {
			near = append(near, t+"."+k)
		}
	}
	const most = 3 // maximum number of suggestions; longer lists do not help the user
	if len(same) > 0 {
		near = same
	}
	if len(near) > most {
		return nil
	}
	return near
}
