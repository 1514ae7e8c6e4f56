package store

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
)

// validateObject is validate.Object. This package cannot import validate, which imports it; see
// TestMain.
var validateObject func(*object.Object) []object.Finding

// SetValidate sets validateObject.
func SetValidate(validate func(*object.Object) []object.Finding) { validateObject = validate }

// entry returns a ServiceEntry for a host.
func entry(name, host string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s}
spec:
  hosts: [%s]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}]
`, name, host)
}

type files struct {
	t         *testing.T
	directory string
	store     *Store
}

func newFiles(t *testing.T) *files {
	directory := t.TempDir()
	return &files{t: t, directory: directory,
		store: New(Options{Paths: []string{directory}, Namespace: "ns", Validate: validateObject})}
}

func (f *files) path(name string) string { return filepath.Join(f.directory, name) }

func (f *files) write(name, content string) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(f.path(name)), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(f.path(name), []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *files) remove(name string) {
	f.t.Helper()
	if err := os.RemoveAll(f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

// changes returns changes as texts "name: host → host".
func (f *files) changes(changes []object.Change) []string {
	host := func(o *object.Object) string {
		if o == nil {
			return "-"
		}
		return o.Spec.(*networking.ServiceEntry).Hosts[0]
	}
	var all []string
	for _, c := range changes {
		if c.Old != nil && c.New != nil && c.Old.Spec == c.New.Spec {
			continue // the object has only moved within its file
		}
		all = append(all, fmt.Sprintf("%s: %s → %s", c.NewElseOld().Name, host(c.Old), host(c.New)))
	}
	slices.Sort(all)
	return all
}

// problems returns problems as "file:line: message", with paths relative to the directory.
func (f *files) problems() []string {
	var all []string
	for _, p := range f.store.Problems() {
		all = append(all, strings.TrimPrefix(p.String(), f.directory+"/"))
	}
	return all
}

func (f *files) expect(what string, got []object.Change, want ...string) {
	f.t.Helper()
	if diff := cmp.Diff(want, f.changes(got)); diff != "" {
		f.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func (f *files) expectProblems(parts ...string) {
	f.t.Helper()
	got := f.problems()
	if len(got) != len(parts) {
		f.t.Fatalf("problems %q, want %q", got, parts)
	}
	for i, part := range parts {
		if !strings.Contains(got[i], part) {
			f.t.Errorf("problem %q, want %q", got[i], part)
		}
	}
}

func TestReload_FilesComeAndGo(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", entry("a", "a.test"))
	f.write("deep/er/b.yml", entry("b", "b.test"))
	f.write("list.json", `{"apiVersion":"v1","kind":"List","items":[
	{"apiVersion":"networking.istio.io/v1beta1","kind":"ServiceEntry","metadata":{"name":"c","namespace":"other"},"spec":{"hosts":["c.test"],"resolution":"DNS","ports":[{"number":1,"name":"p","protocol":"TCP"}]}}]}`)
	f.write(".hidden.yaml", entry("hidden", "hidden.test"))
	f.write("a.yaml~", entry("backup", "backup.test"))
	f.expect("first load", f.store.Load(), "a: - → a.test", "b: - → b.test", "c: - → c.test")
	f.expect("nothing changed", f.store.Load())

	f.write("a.yaml", entry("a", "a2.test"))
	f.expect("told by path", f.store.Reload([]string{f.path("a.yaml")}), "a: a.test → a2.test")
	f.write("new/d.yaml", entry("d", "d.test"))
	f.expect("told by folder", f.store.Reload([]string{f.path("new")}), "d: - → d.test")
	f.remove("deep")
	f.expect("a folder that went", f.store.Reload([]string{f.directory + "/..."}), "b: b.test → -")
	f.remove("a.yaml")
	f.expect("a file that went", f.store.Reload([]string{f.path("a.yaml")}), "a: a2.test → -")
	f.expect("a path that is not ours", f.store.Reload([]string{"/elsewhere/x.yaml"}))
	f.expectProblems()
}

func TestReload_OneBadObjectBlocksNoOther(t *testing.T) {
	f := newFiles(t)
	f.write("all.yaml", entry("a", "a.test")+"---\n"+entry("b", "b.test")+"---\n"+entry("c",
		"c.test"))
	f.store.Load()
	for _, test := range []struct {
		name, b string
		problem string
	}{
		{"YAML", "a: [", "all.yaml:"},
		{"unknown field", strings.Replace(entry("b", "b2.test"), "endpoints", "endpoint", 1),
			`all.yaml:17: ServiceEntry ns/b: spec.endpoint: unknown field "endpoint"; did you mean ` +
				`endpoints?`},
		{"type", strings.Replace(entry("b", "b2.test"), "number: 80", "number: eighty", 1),
			"all.yaml:16: ServiceEntry ns/b: spec.ports[0].number: must be a number, is text (eighty)"},
		{"text", strings.Replace(entry("b", "b2.test"), "name: http", "name: 80", 1),
			`must be text, is a number (80); put it in quotes: "80"`},
		{"twice", strings.Replace(entry("b", "b2.test"), "  resolution: STATIC\n",
			"  resolution: STATIC\n  resolution: DNS\n", 1),
			"all.yaml:16: ServiceEntry ns/b: spec.resolution: given twice"},
		{"value", strings.Replace(entry("b", "b2.test"), "STATIC", "STATISCH", 1),
			`"STATISCH" is not one of NONE, STATIC, DNS`},
		{"validation", strings.Replace(entry("b", "b2.test"), "10.0.0.1", "ten", 1),
			`all.yaml:17: ServiceEntry ns/b: spec.endpoints[0].address: "ten" is no IP address`},
	} {
		t.Run(test.name, func(t *testing.T) {
			f.t = t
			f.write("all.yaml", entry("a", "a2.test")+"---\n"+test.b+"---\n"+entry("c", "c.test"))
			f.expect("the bad one stays", f.store.Load(), "a: a.test → a2.test")
			f.expectProblems(test.problem)
			f.write("all.yaml", entry("a", "a.test")+"---\n"+entry("b", "b.test")+"---\n"+entry("c",
				"c.test"))
			f.store.Load()
			f.expectProblems()
		})
	}
	f.t = t
	f.write("all.yaml", entry("a", "a.test")+"---\n"+entry("c", "c.test"))
	f.expect("taken out", f.store.Load(), "b: b.test → -")
	f.write("all.yaml", "just text")
	f.expect("a file of nothing but a fault", f.store.Load())
	f.expectProblems("all.yaml:1: an object must be a mapping, this is text")
	f.write("all.yaml", "")
	f.expect("an empty file", f.store.Load(), "a: a.test → -", "c: c.test → -")
}

func TestReload_OlderObjectHasPrecedence(t *testing.T) {
	f := newFiles(t)
	dated := func(host, date string) string {
		return strings.Replace(entry("same", host), "{name: same}",
			"{name: same, creationTimestamp: "+date+"}", 1)
	}
	f.write("b.yaml", dated("b.test", "2026-01-01T00:00:00Z"))
	f.write("c.yaml", dated("c.test", "2025-01-01T00:00:00Z"))
	f.expect("by time", f.store.Load(), "same: - → c.test")
	f.expectProblems("b.yaml:1: ServiceEntry ns/same: has no effect: it is given at " + f.path("c.yaml") +
		":1 too, which has the earlier creationTimestamp (an object without one counts as earlier)")
	f.write("a.yaml", dated("a.test", "2025-01-01T00:00:00Z"))
	f.expect("by path", f.store.Load(), "same: c.test → a.test")
	f.remove("a.yaml")
	f.expect("the next one follows", f.store.Load(), "same: a.test → c.test")
	f.write("c.yaml", dated("c.test", "2025-01-01T00:00:00Z")+"---\n"+dated("c2.test",
		"2025-01-01T00:00:00Z"))
	f.expect("by place", f.store.Load())
	f.expectProblems("b.yaml:1", "c.yaml:10")
}

func TestReload_ParsesChangedDocumentsOnly(t *testing.T) {
	f := newFiles(t)
	f.write("all.yaml", entry("a", "a.test")+"---\n"+entry("b", "b.test"))
	f.store.Load()
	before := f.store.candidates[object.Key{Kind: object.ServiceEntry, Namespace: "ns",
		Name: "b"}][0]
	f.write("all.yaml", entry("a", "a.test")+"---\n"+entry("b", "b.test")+"---\n"+entry("c",
		"c.test"))
	f.expect("one more", f.store.Load(), "c: - → c.test")
	f.write("all.yaml", "# a comment\n"+entry("a", "a.test")+"---\n"+entry("b", "b.test")+"---\n"+
		entry("c", "c.test"))
	f.store.Load()
	now := f.store.candidates[before.Key][0]
	if now.Spec != before.Spec || now.Line != before.Line+1 {
		t.Errorf("line %d → %d, parsed again: %v", before.Line, now.Line, now.Spec != before.Spec)
	}
}

func TestKinds(t *testing.T) {
	for _, test := range []struct{ yaml, problem string }{
		{"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n",
			`kind Deployment of "apps/v1" is not supported by this version of Outrider and has no effect`},
		{"apiVersion: networking.istio.io/v1\nkind: VirtualServices\nmetadata: {name: x}\n",
			"did you mean VirtualService?"},
		{"apiVersion: networking.istio.io/v2\nkind: Gateway\nmetadata: {name: x}\nspec: {}\n",
			`unknown version "v2"`},
		{"apiVersion: v1\nkind: Gateway\nmetadata: {name: x}\nspec: {}\n",
			`"v1" is not an API of Gateway`},
		{"kind: Gateway\n", `"" is not an API of Gateway`},
		{"metadata: {name: x}\n", "the object has no kind"},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nspec: {}\n",
			"the object has no metadata.name"},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: yes}\nspec: {}\n",
			`metadata.name: must be text, is a boolean (yes); put it in quotes: "yes"`},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: x}\n",
			"the object has no spec"},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: x, namepsace: y}\n" +
			"spec: {servers: []}\n", `:3: metadata.namepsace: unknown key "namepsace" in metadata; did you mean namespace?`},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: My_Gateway}\n" +
			"spec: {servers: []}\n", `:3: metadata.name: "My_Gateway" is no name of an object`},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: x, namespace: a.b}\n" +
			"spec: {servers: []}\n", `metadata.namespace: "a.b" is no namespace`},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: x, labels: {a: b/c}}\n" +
			"spec: {servers: []}\n", `metadata.labels["a"]: "b/c" is no label's value`},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\n" +
			"metadata: {name: x, annotations: {'a b': c}}\nspec: {servers: []}\n", `metadata.annotations["a b"]: "a b" is no annotation`},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: x}\nspec: {'': 5}\n",
			`:4: Gateway ns/x: spec[""]: unknown field ""`},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: x}\n" +
			"spec: {servers: [{port: {number: '80'}}]}\n", `spec.servers[0].port.number: must be a number, is text (80)`},
		{"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: x}\nservers: []\n" +
			"spec: {}\n", `:4: servers: unknown key "servers" beside spec`},
		{"metadata: {name: x, namepsace: y}\nkind: Gateway\nspec: {servers: []}\n" +
			"apiVersion: networking.istio.io/v1\n", `:1: metadata.namepsace: unknown key`},
		{"metadata: {name: My_Map, of: {a: b}}\ndata: {}\nkind: ConfigMap\napiVersion: v1\n",
			`:1: ConfigMap ns/My_Map: kind ConfigMap of "v1" is not supported`},
		{"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: x}\n",
			`kind Gateway of "gateway.networking.k8s.io/v1" is not supported`},
		{"apiVersion: v1\nkind: List\nitems: {a: b}\n", `:3: items: must be a list, is a mapping`},
		{"apiVersion: v1\nkind: List\n", `:1: items: the list has no items`},
		{"apiVersion: v1\nkind: List\nitems:\n-\n", `an object must be a mapping, this is `},
		{"- a\n", "an object must be a mapping, this is a list"},
	} {
		f := newFiles(t)
		f.write("x.yaml", test.yaml)
		f.store.Load()
		problems := f.store.Problems()
		if len(problems) != 1 {
			t.Errorf("%q: problems %v", test.yaml, problems)
			continue
		}
		if got := strings.TrimPrefix(problems[0].String(), f.path("x.yaml")); !strings.Contains(got,
			test.problem) {
			t.Errorf("%q:\n got %s\nwant %s", test.yaml, got, test.problem)
		}
	}
}

func TestReload_MissingPath(t *testing.T) {
	f := newFiles(t)
	f.store = New(Options{Paths: []string{f.path("later")}, Namespace: "ns"})
	f.expect("nothing", f.store.Load())
	f.expectProblems("later:1: does not exist")
	f.write("later/a.yaml", entry("a", "a.test"))
	f.expect("it came", f.store.Reload([]string{f.path("later")}), "a: - → a.test")
	f.expectProblems()
}

func TestReload_KeepsObjectsOfVanishedFolder(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", entry("a", "a.test"))
	f.write("below/b.yaml", entry("b", "b.test"))
	f.expect("at first", f.store.Load(), "a: - → a.test", "b: - → b.test")
	away := f.directory + ".away"
	if err := os.Rename(f.directory, away); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(away) })
	f.expect("renamed away", f.store.Reload([]string{f.path("a.yaml"), f.directory,
		f.path("below")}))
	f.expectProblems(
		"is gone: its 2 files stay in force as last read; mount or move it back, or create an empty " +
			"file " + f.path("empty.yaml") + " if nothing of it is to be in force")
	f.expect("looked through again", f.store.Load())

	// an empty directory at the path may be a mount point whose file system was unmounted
	if err := os.Mkdir(f.directory, 0o755); err != nil {
		t.Fatal(err)
	}
	f.expect("another directory", f.store.Load())
	f.expectProblems("is empty, and may be a mount point: its 2 files stay in force")

	if err := os.Remove(f.directory); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, f.directory); err != nil {
		t.Fatal(err)
	}
	f.expect("renamed back", f.store.Reload([]string{f.path("below")}))
	f.expectProblems()
	f.remove("a.yaml")
	f.remove("below")
	f.expect("emptied", f.store.Load(), "a: a.test → -", "b: b.test → -")
	f.expectProblems()
}

func TestReload_SkipsNamedPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(pipe, &file{}); err == nil || !strings.Contains(err.Error(),
		"no regular file") {
		t.Errorf("a named pipe: %v", err)
	}
}
