package config

import (
	"strconv"
	"strings"
)

// list is an array of tables. The array in a file replaces that of earlier files.
type list struct {
	reset func()                  // removes all tables
	add   func(name string) table // appends a table whose table.name is name
}

// list decodes an array of tables.
func (f *fileDecoder) list(at []string, l *list, raw any) {
	tables, ok := tablesOf(raw)
	name := dotted(at)
	if !ok {
		f.fail(at, problemf("write [["+name+"]] and its keys below it",
			"is %s, not a list of tables", describe(raw)))
		return
	}
	for old := range f.positions {
		if strings.HasPrefix(old, name+".") {
			delete(f.positions, old)
		}
	}
	f.positions[name] = f.position(at)
	l.reset()
	for i, below := range tables {
		element := child(at, strconv.Itoa(i+1))
		t := l.add(dotted(element))
		for _, k := range t.keys {
			k.reset()
		}
		f.learn(t)
		f.tables, f.vocabulary = append(f.tables, t), nil
		f.positions[dotted(element)] = f.position(element)
		f.table(element, below)
	}
}

// tablesOf returns an array of tables, which may be inline.
func tablesOf(raw any) (tables []map[string]any, ok bool) {
	if tables, ok := raw.([]map[string]any); ok {
		return tables, true
	}
	items, ok := raw.([]any)
	for _, item := range items {
		t, isTable := item.(map[string]any)
		if !isTable {
			return nil, false
		}
		tables = append(tables, t)
	}
	return tables, ok
}
