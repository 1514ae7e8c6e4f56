package store

import (
	"os"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery/object"
)

// TestIn_MovesObjectsWithoutNamespace moves objects without a namespace and does not affect the
// original store.
func TestIn_MovesObjectsWithoutNamespace(t *testing.T) {
	f := newFiles(t)
	f.write("all.yaml", entry("a", "a.test")+"---\n"+strings.Replace(entry("b", "b.test"),
		"{name: b}", "{name: b, namespace: ns}", 1))
	f.write("bad.yaml", entry("c", "c.test")+"---\n"+entry("d", "d.test"))
	f.store.Load()
	f.write("bad.yaml", "a: [\n---\n"+strings.Replace(entry("d", "d.test"), "STATIC", "STATISCH",
		1))
	f.store.Load()
	former := f.store
	namespaces := func(changes []object.Change) string {
		var all []string
		for _, c := range changes {
			all = append(all, c.Newest().Namespace+"/"+c.Newest().Name)
		}
		return strings.Join(all, " ")
	}

	other, changes := former.In("other")
	if got := namespaces(changes); got != "other/a ns/b other/c other/d" {
		t.Errorf("moved: %s", got)
	}
	f.store = other
	f.expect("read again", other.Load(), "a: a.test → a.test", "b: b.test → b.test")
	f.expectHeld("moved", "bad.yaml c", "bad.yaml d")
	if told := strings.Join(f.problems(), "\n"); !strings.Contains(told, "ServiceEntry other/d") {
		t.Errorf("problems: %s", told)
	}
	if again := New(Options{Paths: other.options.Paths, Namespace: "third",
		LastGood: other.Held()}); namespaces(again.Load()) != "third/a ns/b third/c third/d" {
		t.Error("the last good versions of one namespace are not those of the next start in " +
			"another")
	}

	// Objects of a missing directory stay in both stores.
	if err := os.Rename(f.directory, f.directory+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(f.directory + ".away") })
	former.Load()
	third, changes := former.In("third")
	if got := namespaces(append(changes, third.Load()...)); got != "third/a ns/b third/c third/d" {
		t.Errorf("moved while the folder is away: %s", got)
	}
	if len(third.Problems()) == 0 || !strings.Contains(third.Problems()[0].Message,
		"stay in force") {
		t.Errorf("problems: %v", third.Problems())
	}
}
