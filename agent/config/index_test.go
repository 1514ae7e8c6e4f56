package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

func TestPositions(t *testing.T) {
	const text = "# comment [not.a.table]\r\n" +
		"top = '''\n[no]\nno = 1''''' # two quotes of its own\n" +
		"\t[ a . \"b\\u00e9\" ]\n" +
		"x=\"\"\"\\\"\"\" y = 1\n\"\"\"\n" +
		"'l it'.\"q\\\"\" = [ 1, # ]\n  { in = { deep = 'a # b' } }, [ { list = 2 } ],\n]\n" +
		"[[t]]\nk = 1979-05-27 07:32:00\n[[t]]\n\"ö\".k = 1\n" +
		"last = \"ü\"\nnot TOML\nlost = 1"
	want := map[string][2]int{
		"top": {2, 1}, "a": {5, 2},
		`a."bé"`: {5, 2}, `a."bé".x`: {6, 1}, `a."bé"."l it"`: {8, 1},
		`a."bé"."l it"."q\""`:    {8, 1},
		`a."bé"."l it"."q\"".in`: {9, 5}, `a."bé"."l it"."q\"".in.deep`: {9, 12},
		`a."bé"."l it"."q\"".list`: {9, 36},
		"t":                        {11, 1}, "t.k": {12, 1}, `t."ö"`: {14, 1}, `t."ö".k`: {14, 1},
		"t.last": {15, 1},
	}
	index := newIndex(text)
	got := map[string][2]int{}
	for name, offset := range index.offsets {
		line, column := index.position(offset)
		got[name] = [2]int{line, column}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if line, column := newIndex("\"äö\" = 1\nx = { b = 2 }").at(
		[]string{"ü", "b", "missing"}); line != 1 || column != 1 {
		t.Errorf("a key that is nowhere is at %d:%d", line, column)
	}
	if line, column := newIndex("x = 1\n\"ü\" = { a = 1, b = 2 }").at(
		[]string{"ü", "missing"}); line != 2 || column != 1 {
		t.Errorf("a key that is missing in a table is at %d:%d", line, column)
	}
}

// The parser skips repeated and UTF-16 byte order marks; Load rejects them.
func TestByteOrderMarks(t *testing.T) {
	for text, want := range map[string]string{
		"\ufeff[node]\nid = \"a\"":       "",
		"\ufeff\ufeff[node]\nid = \"a\"": "/etc/outrider/x.toml:1:1: is not TOML: it begins with two byte order marks, which editors do not show; save it without one",
		"\xff\xfe[node]\nid = \"a\"":     "/etc/outrider/x.toml:1:1: is not TOML: it begins with the byte order mark of UTF-16; save it as UTF-8",
		"\xfe\xff\x00[":                  "/etc/outrider/x.toml:1:1: is not TOML: it begins with the byte order mark of UTF-16; save it as UTF-8",
	} {
		_, errs := buildAt([]txtar.File{{Name: "x.toml", Data: []byte(text)}}, Options{})
		if got := errs.Error(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// agree checks that the index of a valid text has the keys that the parser finds.
func agree(t *testing.T, text string) {
	t.Helper()
	text, wrong := withoutMark(text)
	if wrong != nil {
		return
	}
	index := newIndex(text)
	for name, offset := range index.offsets {
		line, column := index.position(offset)
		if line < 1 || line > strings.Count(text, "\n")+1 || column < 1 || offset < 0 ||
			offset >= len(text) {
			t.Fatalf("%s is at byte %d, %d:%d", name, offset, line, column)
		}
	}
	var raw map[string]any
	meta, err := toml.Decode(text, &raw)
	if err != nil {
		return
	}
	want := map[string]bool{}
	for _, key := range meta.Keys() {
		want[dotted(key)] = true
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)),
		slices.Sorted(maps.Keys(index.written))); diff != "" {
		t.Fatalf("-parser +index:\n%s", diff)
	}
}

// seeds returns the configurations in the test data as seeds of a fuzz test.
func seeds(f *testing.F) []string {
	paths, err := filepath.Glob("testdata/errors/*.txtar")
	if err != nil || len(paths) == 0 {
		f.Fatal(paths, err)
	}
	texts := []string{DefaultsTOML(),
		"a.b = { c = [ { d = 1 } ] } # e = 1\n[[f]]\n\"g\" = '''h'''\n",
		"\ufeff[node]\nid = \"a\"",
		"a = \"\\\"\" # \"\nb = 'c", "[a]\r\nb = 1\r\n[c.d]\r\n",
		"x = 1_000\ny = [1,2,\n3]\nz = {a.b = 1,\n c = 2,}"}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			texts = append(texts, string(file.Data))
		}
	}
	contract, err := os.ReadFile("testdata/contract.toml")
	if err != nil {
		f.Fatal(err)
	}
	return append(texts, string(contract))
}

// FuzzPositions checks that indexing never fails and finds the same keys as the parser.
func FuzzPositions(f *testing.F) {
	for _, text := range seeds(f) {
		f.Add(text)
	}
	f.Fuzz(agree)
}

// FuzzLoad checks that arbitrary files yield a configuration or errors with positions.
func FuzzLoad(f *testing.F) {
	all := seeds(f)
	for i, text := range all {
		f.Add(text, all[(i+1)%len(all)])
	}
	f.Fuzz(func(t *testing.T, main, dropIn string) {
		loaded, errs := buildAt([]txtar.File{{Name: "outrider.toml", Data: []byte(main)},
			{Name: "conf.d/10.toml", Data: []byte(dropIn)}}, Options{})
		for _, e := range append(errs, loaded.Warnings...) {
			if e.File == "" || e.Line < 1 || e.Column < 1 || e.Message == "" {
				t.Fatalf("says not where: %q", e)
			}
		}
		for key, position := range loaded.Positions {
			if position.Line < 1 {
				t.Fatalf("%s is at %v", key, position)
			}
		}
		if len(errs) > 0 {
			return
		}
		again, errs := buildAt([]txtar.File{{Name: "outrider.toml",
			Data: []byte(loaded.TOMLWithSources())}},
			Options{})
		if len(errs) > 0 {
			t.Fatalf("shown, it is not valid: %v\n%s", errs, loaded.TOMLWithSources())
		}
		if changes := Compare(loaded.Config, again.Config); len(changes) > 0 ||
			loaded.Hash != again.Hash {
			t.Fatalf("shown, it is another one: %v\n%s", changes, loaded.TOMLWithSources())
		}
	})
}
