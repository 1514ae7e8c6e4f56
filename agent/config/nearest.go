package config

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"outrider.org/outrider/agent/spelling"
)

// enumerate joins words as people do: a, b and c.
func enumerate(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// nearest returns the candidate that word was most likely meant to be: one that it is the beginning
// of, or one with nearly that spelling; "" if there is none.
func nearest(word string, candidates []string) string {
	const shortestBeginning = 4
	word = normal(word)
	near := spelling.Nearest(word, candidates)
	begins := func(candidate string) bool { return strings.HasPrefix(candidate, word) }
	if i := slices.IndexFunc(candidates, begins); near == "" && i >= 0 && len(word) >= shortestBeginning {
		return candidates[i]
	}
	return near
}

var innerCapital = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// normal writes drainDuration and drain-duration as drain_duration, the way of all keys.
func normal(word string) string {
	word = innerCapital.ReplaceAllString(word, "${1}_${2}")
	return strings.ToLower(strings.ReplaceAll(word, "-", "_"))
}

// vocabulary is what the definitions know, for the cure of a key or table that they do not know.
type vocabulary struct {
	tables []string            // dotted names, probes as status.probe.NAME
	keys   map[string][]string // table → names of its keys
	roles  map[string]string   // pilot-agent's word, normal → dotted key
}

func newVocabulary(tables []table) *vocabulary {
	v := &vocabulary{keys: map[string][]string{}, roles: map[string]string{}}
	for _, t := range append(slices.Clone(tables), probeTable("NAME", &Probe{})) {
		v.tables = append(v.tables, t.name)
		for _, k := range t.keys {
			v.keys[t.name] = append(v.keys[t.name], k.name)
			for role := range strings.SplitSeq(k.role, ", ") {
				if role != "" {
					v.roles[normal(strings.TrimPrefix(role, "--"))] = t.name + "." + k.name
				}
			}
		}
	}
	return v
}

// name is the name of a table as the vocabulary knows it: every probe is NAME.
func (v *vocabulary) name(table []string) string {
	if len(table) == 3 && dotted(table[:2]) == probesTable {
		return probesTable + ".NAME"
	}
	return dotted(table)
}

// fewKeys is how many keys a table may have for a list of them to be of more help than a key of another table.
const fewKeys = 8

// unknown is the problem of a key or table that the table parent does not have; parent is empty at the top level. below is
// the content of a table, nil for a key.
func (v *vocabulary) unknown(parent []string, name string, below map[string]any) *problem {
	table := v.name(parent)
	isTable := below != nil
	if isTable && table == probesTable+".NAME" && nearest(name, v.keys[table]) == "" {
		quoted := dotted(child(parent[:2], parent[2]+"."+name))
		return problemf("a name with a dot is written in quotes: ["+quoted+"]", "there is no such table")
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
	case v.keys[table] != nil:
		return problemf("["+dotted(parent)+"] has "+enumerate(v.keys[table]), "%s", what)
	default:
		return problemf("the tables are "+enumerate(v.tables), "%s", what)
	}
}

// tableWith returns the only table that has all the keys of an unknown one, "" if there is none or several.
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

// table finds the table that was meant: of nearly that name, or of the same name in another table.
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

// elsewhere finds keys of other tables: by pilot-agent's names, by the same name, and, where it is no key of a table of ours,
// by nearly that name. A table of few keys had better list its own.
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
	const most = 3 // more is no help
	if len(same) > 0 {
		near = same
	}
	if len(near) > most {
		return nil
	}
	return near
}
