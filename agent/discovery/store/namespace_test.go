package store

import (
	"os"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery/object"
)

// TestSetNamespace_MovesObjectsWithoutNamespace: objects that name no namespace move to the new
// default namespace, also last good versions of files that are invalid or missing.
func TestSetNamespace_MovesObjectsWithoutNamespace(t *testing.T) {
	f := newFiles(t)
	f.write("all.yaml", entry("a", "a.test")+"---\n"+strings.Replace(entry("b", "b.test"),
		"{name: b}", "{name: b, namespace: ns}", 1))
	f.write("bad.yaml", entry("c", "c.test")+"---\n"+entry("d", "d.test"))
	f.store.Load()
	f.write("bad.yaml", "a: [\n---\n"+strings.Replace(entry("d", "d.test"), "STATIC", "STATISCH",
		1))
	f.store.Load()
	inForce := func(namespace string) string {
		var all []string
		objects := slices.Values(f.store.Objects(namespace))
		for _, o := range slices.SortedFunc(objects, object.CompareAge) {
			all = append(all, o.Namespace+"/"+o.Name)
		}
		return strings.Join(all, " ")
	}

	f.store.SetDefaultNamespace("other")
	if got := inForce("other"); got != "other/a ns/b other/c other/d" {
		t.Errorf("moved: %s", got)
	}
	if got := inForce("default"); got != "default/a ns/b default/c default/d" {
		t.Errorf("of proxies in the namespace before: %s", got)
	}
	f.expect("read again", f.store.Load(), "a: a.test → a.test", "b: b.test → b.test")
	f.expectHeld("moved", "bad.yaml c", "bad.yaml d")
	if told := strings.Join(f.problems(), "\n"); !strings.Contains(told, "ServiceEntry other/d") {
		t.Errorf("problems: %s", told)
	}
	again := New(Options{Paths: f.store.options.Paths, Namespace: "third", LastGood: f.store.LastGoodObjects()})
	again.Load()
	former := f.store
	if f.store = again; inForce("third") != "third/a ns/b third/c third/d" {
		t.Error("the last good versions of one namespace are not those of the next start in " +
			"another")
	}

	// Objects of a directory that does not exist stay in force.
	if err := os.Rename(f.directory, f.directory+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(f.directory + ".away") })
	f.store = former
	f.store.Load()
	f.store.SetDefaultNamespace("third")
	f.store.Load()
	if got := inForce("third"); got != "third/a ns/b third/c third/d" {
		t.Errorf("moved while the folder is away: %s", got)
	}
	if len(f.store.Problems()) == 0 || !strings.Contains(f.store.Problems()[0].Message,
		"stay in force") {
		t.Errorf("problems: %v", f.store.Problems())
	}
}

// TestObjects_OneForEachKey reads two objects with the same name, one of which names the namespace
// shop and one of which names none. If shop is the default namespace, both have the same key, and
// Objects returns only one.
func TestObjects_OneForEachKey(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", strings.Replace(entry("web", "a.test"), "{name: web}",
		"{name: web, namespace: shop}", 1))
	f.write("b.yaml", entry("web", "b.test"))
	f.store.Load()
	for range 2 {
		for namespace, want := range map[string]int{"shop": 1, "default": 2} {
			if got := f.store.Objects(namespace); len(got) != want {
				t.Errorf("in %s: %d objects, want %d", namespace, len(got), want)
			}
		}
		f.store.SetDefaultNamespace("shop")
	}
}
