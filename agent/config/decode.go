package config

import (
	"cmp"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// source is the text of one file: the main file or a drop-in.
type source struct {
	path string // absolute
	text string
}

// decoder merges sources into the fields of tables key by key and collects all errors.
type decoder struct {
	tables      []table
	lists       map[string]*list // by dotted name
	credentials credentials
	keys        map[string]key // by dotted name
	known       map[string]bool
	probes      map[string]*Probe
	vocabulary  *vocabulary // created at the first unknown key or table
	// positions maps dotted keys to the position of their value. Tables such as node.labels have
	// one position per entry.
	positions map[string]Position
	failed    map[string]bool // dotted keys with an error
	broken    bool            // a file is not valid TOML
	errors    Errors
}

func newDecoder(tables []table, credentials credentials) *decoder {
	d := &decoder{tables: tables, credentials: credentials, keys: map[string]key{},
		known:  map[string]bool{},
		probes: map[string]*Probe{}, positions: map[string]Position{}, failed: map[string]bool{}}
	for _, t := range tables {
		d.learn(t)
	}
	return d
}

func (d *decoder) learn(t table) {
	d.known[t.name] = true
	for _, k := range t.keys {
		d.keys[t.keyName(k)] = k
	}
}

// file merges the text of a file over that of the files before it.
func (d *decoder) file(s source) {
	text, wrong := withoutMark(s.text)
	if wrong != nil {
		d.errors, d.broken = append(d.errors, &Error{Position: Position{s.path, 1, 1},
			Message: wrong.message, Fix: wrong.fix}), true
		return
	}
	var raw map[string]any
	keyIndex := newIndex(text)
	if _, err := toml.Decode(text, &raw); err != nil {
		d.errors, d.broken = append(d.errors, syntaxError(s.path, keyIndex, err)), true
		return
	}
	f := &fileDecoder{decoder: d, path: s.path, keyIndex: keyIndex}
	f.table(nil, raw)
}

// withoutMark removes the UTF-8 byte order mark. It rejects a second one and those of UTF-16: the
// parser would skip them and return wrong positions.
func withoutMark(text string) (string, *problem) {
	text = strings.TrimPrefix(text, "\ufeff")
	switch {
	case strings.HasPrefix(text, "\ufeff"):
		return "", problemf("save it without one",
			"is not TOML: it begins with two byte order marks, which editors do not show")
	case strings.HasPrefix(text, "\xff\xfe"), strings.HasPrefix(text, "\xfe\xff"):
		return "", problemf("save it as UTF-8",
			"is not TOML: it begins with the byte order mark of UTF-16")
	}
	return text, nil
}

// syntaxError converts an error of the TOML parser.
func syntaxError(path string, keyIndex *index, err error) *Error {
	var parse toml.ParseError
	if !errors.As(err, &parse) {
		return &Error{Position: Position{path, 1, 1},
			Message: "is not TOML: " + withoutText(err.Error())}
	}
	line, column := keyIndex.position(parse.Position.Start)
	e := &Error{Position: Position{path, line, column},
		Message: "is not TOML: " + withoutText(parse.Message)}
	if name, ok := strings.CutSuffix(strings.TrimPrefix(parse.Message, "Key '"),
		"' has already been defined."); ok {
		e.Key, e.Message, e.Fix = name, "is defined twice", "keep one of the two"
		if offset, ok := keyIndex.offsets[name]; ok {
			firstLine, _ := keyIndex.position(offset)
			if firstLine != line {
				e.Message = "is defined twice, first in line " + render(firstLine)
			}
		}
	}
	if e.Fix == "" && bareWord.MatchString(keyIndex.lineText(line)) {
		e.Fix = "a text is written in quotes"
	}
	return e
}

// bareWord matches a line that sets a key to an unquoted word, which is not a number, list or
// table.
var bareWord = regexp.MustCompile(`^[^="'#]+=\s*([^"'\[{\s#][^"'#]*?)\s*(?:#.*)?$`)

// Patterns of text that a message of the TOML parser may quote from the file. Some quotations are
// not values but single delimiters.
var (
	quotation = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'`)
	number    = regexp.MustCompile(`(^|\s)[-+]?[0-9]\S*`)
)

// withoutText redacts the file's content in a parser message. In invalid TOML it is unknown to
// which key a value belongs, so each value may be a secret. Names of keys and delimiters remain.
func withoutText(message string) string {
	if strings.HasPrefix(message, "Key '") {
		return message
	}
	message = number.ReplaceAllString(message, "${1}"+concealed)
	return quotation.ReplaceAllStringFunc(message, func(quoted string) string {
		// do not redact a delimiter: one character, possibly escaped
		text := strings.TrimPrefix(quoted[1:len(quoted)-1], `\`)
		if utf8.RuneCountInString(text) > 1 && strings.ContainsFunc(text, isWord) {
			return concealed
		}
		return quoted
	})
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// fileDecoder decodes one file.
type fileDecoder struct {
	*decoder
	path     string
	keyIndex *index
}

func (f *fileDecoder) position(key []string) Position {
	line, column := f.keyIndex.at(key)
	return Position{f.path, line, column}
}

func (f *fileDecoder) fail(key []string, p *problem) {
	f.failed[dotted(key)] = true
	for _, name := range p.below {
		key = child(key, name)
	}
	f.errors = append(f.errors,
		&Error{Position: f.position(key), Key: dotted(key), Message: p.message, Fix: p.fix})
}

// table decodes the entries of a table in file order.
func (f *fileDecoder) table(parent []string, raw map[string]any) {
	names := sortedKeys(raw)
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(f.keyIndex.offsets[dotted(child(parent, a))],
			f.keyIndex.offsets[dotted(child(parent, b))])
	})
	for _, name := range names {
		at := child(parent, name)
		full := dotted(at)
		k, isKey := f.keys[full]
		below, isTable := raw[name].(map[string]any)
		switch {
		case f.lists[full] != nil:
			f.list(at, f.lists[full], raw[name])
		case isKey && isTable && isTableOfValues(k):
			// one call per entry, so that each reports its own error
			for _, entry := range sortedKeys(below) {
				f.key(at, k, map[string]any{entry: below[entry]})
			}
		case isKey:
			f.key(at, k, raw[name])
		case dotted(parent) == probesTable && isTable:
			f.probe(name, at, below)
		case dotted(parent) == probesTable:
			f.fail(at, problemf("write [status.probe."+bareOrQuoted(name)+"] and its keys below it",
				"is %s, not a probe", describe(raw[name])))
		case f.known[full] && isTable:
			f.table(at, below)
		case f.known[full]:
			f.fail(at, problemf("write ["+full+"] and its keys below it", "is a table, not %s",
				describe(raw[name])))
		default:
			if f.vocabulary == nil {
				f.vocabulary = newVocabulary(f.definitions(), sortedKeys(f.lists))
			}
			f.failed[dotted(parent)] = true // no further checks: a required key may be misspelt
			if many, isTables := raw[name].([]map[string]any); isTables {
				below = many[0] // TOML has no empty array of tables
			}
			f.fail(at, f.vocabulary.unknown(parent, name, below))
		}
	}
}

// definitions returns the tables for suggestions about unknown keys. It adds the table of a probe
// if the file may define probes.
func (d *decoder) definitions() []table {
	if d.known[probesTable] {
		return append(slices.Clone(d.tables), probeTable("NAME", &Probe{}))
	}
	return d.tables
}

func isTableOfValues(k key) bool {
	switch k.value.(type) {
	case map[string]string, map[string]any:
		return true
	}
	return false
}

// child returns the key name below parent in a new slice.
func child(parent []string, name string) []string {
	return append(append(make([]string, 0, len(parent)+1), parent...), name)
}

func (f *fileDecoder) probe(name string, at []string, raw map[string]any) {
	if name == "" {
		f.fail(at, problemf("give it a name: GET /app-health/NAME runs it", "a probe has no name"))
		return
	}
	probe := f.probes[name]
	if probe == nil {
		probe = &Probe{}
		f.probes[name] = probe
		t := probeTable(name, probe)
		for _, k := range t.keys {
			k.reset()
		}
		f.learn(t)
		f.positions[dotted(at)] = f.position(at)
	}
	f.table(at, raw)
}

// key sets a key if its value is valid.
func (f *fileDecoder) key(at []string, k key, raw any) {
	value, p := convert(k.get(), raw)
	if p == nil {
		value, p = f.final(k, value)
	}
	if p == nil {
		p = first(value, append([]check{noNUL}, k.checks...))
	}
	if p != nil {
		k.concealProblem(p)
		f.fail(at, p)
		return
	}
	k.set(value)
	if isTableOfValues(k) {
		f.remember(at, raw)
	} else {
		f.positions[dotted(at)] = f.position(at)
	}
}

// remember records the position of a value, or of each entry of a table such as node.labels. It
// removes the positions of entries that the value replaces.
func (f *fileDecoder) remember(at []string, raw any) {
	if entries, ok := raw.(map[string]any); ok && len(entries) > 0 {
		delete(f.positions, dotted(at))
		for name, value := range entries {
			f.remember(child(at, name), value)
		}
		return
	}
	name := dotted(at)
	for old := range f.positions {
		if strings.HasPrefix(old, name+".") {
			delete(f.positions, old)
		}
	}
	f.positions[name] = f.position(at)
}

// final returns a value with its paths made absolute and its credentials resolved.
func (f *fileDecoder) final(k key, value any) (any, *problem) {
	if k.form == plain {
		return value, nil
	}
	switch value := value.(type) {
	case string:
		return f.finalPath(k, value)
	case []string:
		for i := range value {
			var p *problem
			if value[i], p = f.finalPath(k, value[i]); p != nil {
				return nil, p
			}
		}
		return value, nil
	}
	return value, nil
}

func (f *fileDecoder) finalPath(k key, value string) (string, *problem) {
	if name, ok := strings.CutPrefix(value, credentialPrefix); ok && k.credentialAllowed {
		return f.credentials.file(name)
	}
	if value == "" || filepath.IsAbs(value) || k.form == program && !strings.Contains(value, "/") {
		return value, nil
	}
	return filepath.Join(filepath.Dir(f.path), value), nil
}
