package store

import (
	"fmt"
	"testing"
)

func TestSyntaxErrors_HaveTheLine(t *testing.T) {
	for text, want := range map[string]int{
		"a: b\n c: d\n": 2,
		"x: 1\ny: 2\nlist:\n- a: 1\n  b: 2\n c: 3\n": 6,
		"a: 1\nb: 2\nc: @x\nd: 1\n":                  3,
		"a: 1\n\tb: 2\n":                             2,
		"a:\n- b\n- c\nd: 'x\n":                      4,
		"a: {b: 1,\n  c: 2\nd: 3\n":                  2,
		"a: 1\nb\nc: 2\n":                            2,
		"a: *none\n":                                 1,
	} {
		found := (&reader{file: "f.yaml"}).read([]byte(text), 1)
		if len(found.problems) != 1 || found.problems[0].Line != want {
			t.Errorf("%q: %v, want line %d", text, found.problems, want)
		}
	}
}

// TestDocuments_AreReadAsKubectlReadsThem: concatenated files may contain several byte order marks,
// and JSON objects without a separator.
func TestDocuments_AreReadAsKubectlReadsThem(t *testing.T) {
	const mark = "\ufeff"
	one := func(name string) string {
		return fmt.Sprintf(
			`{"apiVersion": "networking.istio.io/v1", "kind": "WorkloadEntry", "metadata": {"name": %q}, "spec": {"address": "10.0.0.1"}}`, name)
	}
	for name, text := range map[string]string{
		"marks": mark + one("a") + "\n---\n" + mark + one("b") + "\n" +
			mark + "---\n" + one("c"),
		"JSON, one per line":                one("a") + "\n" + one("b") + "\n" + one("c") + "\n",
		"JSON, without anything in between": one("a") + one("b") + one("c"),
	} {
		f := newFiles(t)
		f.write("x.yaml", text)
		f.store.Load()
		if got := len(f.store.Objects("default")); got != 3 || len(f.store.Problems()) > 0 {
			t.Errorf("%s: %d objects, problems %v", name, got, f.store.Problems())
		}
	}
	f := newFiles(t)
	f.write("x.json", one("a")+"\n"+one("b")+"\n"+`{"kind": 5}`)
	f.store.Load()
	f.expectProblems("x.json:3: kind")
}
