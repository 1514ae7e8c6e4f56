package lastgood_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
)

const mesh = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop, labels: {a: b}, creationTimestamp: 2026-01-02T03:04:05Z}
spec: {hosts: [web.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}
---
apiVersion: v1
kind: List
items:
- apiVersion: networking.istio.io/v1beta1
  kind: VirtualService
  metadata: {name: web, annotations: {c: d}}
  spec: {hosts: [web.test], http: [{timeout: 1.5s, route: [{destination: {host: web.test}}]}]}
- apiVersion: networking.istio.io/v1
  kind: WorkloadEntry
  metadata: {name: vm}
  spec: {address: 10.0.0.2}
  status: {conditions: [{type: Healthy, status: "True"}]}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: filter}
spec:
  configPatches:
  - {applyTo: CLUSTER, match: {context: ANY}, patch: {operation: MERGE, value: {type: STATIC, odd: [null, 1.5, "ü", {}]}}}
`

// objects returns the objects of a file as a store reads them. The ServiceEntry is the youngest
// object.
func objects(t *testing.T) []*object.Object {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(path, []byte(mesh), 0o600); err != nil {
		t.Fatal(err)
	}
	s := store.New(store.Options{Paths: []string{path}, Namespace: "default"})
	var all []*object.Object
	for _, change := range s.Load() {
		all = append(all, change.New)
	}
	if len(all) != 4 {
		t.Fatalf("%d objects, problems %v", len(all), s.Problems())
	}
	return all
}

func nothing(*object.Object) []object.Finding { return nil }

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	all := objects(t)
	want := lastgood.State{
		Objects: all, MeshConfig: []byte("connectTimeout: 1s\n"), MissingPaths: []string{"/mesh.d/away"},
		PolicyFolderInodes: map[string]uint64{"/mesh.d": 1<<64 - 1},
		PolicyCountsByFile: map[string]int{"/mesh.d/a.yaml": 2},
	}
	for range 2 {
		if err := lastgood.Write(path, want); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	got, wrong := lastgood.Read(path, "default", nothing)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || len(wrong) > 0 {
		t.Errorf("%v (-want +got):\n%s", wrong, diff)
	}
	if err := lastgood.Write(path, lastgood.State{Objects: []*object.Object{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("an empty state: %v", err)
	}
	if err := lastgood.Write(path, lastgood.State{}); err != nil {
		t.Errorf("an empty state again: %v", err)
	}
	if got, wrong := lastgood.Read(path, "default", nothing); !got.IsEmpty() || len(wrong) > 0 {
		t.Errorf("no file: %v, %v", got, wrong)
	}
}

// TestWhichObjectsMoveWithTheProxyIsKept checks that NamespaceDefaulted survives writing and
// reading. The file of an older agent has no field "named": its objects in the default namespace
// count as objects without a namespace of their own.
func TestWhichObjectsMoveWithTheProxyIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	if err := lastgood.Write(path, lastgood.State{Objects: objects(t)}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	older := regexp.MustCompile(`"(named|defaulted)":(true|false),`).ReplaceAll(whole, nil)
	for _, test := range []struct {
		name, namespace string
		text            []byte
		want            []bool
	}{
		{"as written", "default", whole, []bool{true, true, true, false}},
		{"in another namespace", "other", whole, []bool{true, true, true, false}},
		{"in that of the object that names one", "shop", whole, []bool{true, true, true, false}},
		{"of an older agent", "default", older, []bool{true, true, true, false}},
		{"of an older agent, in another namespace", "other", older, []bool{false, false, false,
			false}},
	} {
		if err := os.WriteFile(path, test.text, 0o600); err != nil {
			t.Fatal(err)
		}
		state, wrong := lastgood.Read(path, test.namespace, nothing)
		var got []bool
		for _, o := range state.Objects {
			got = append(got, o.NamespaceDefaulted)
		}
		if !slices.Equal(got, test.want) || len(wrong) > 0 {
			t.Errorf("%s: defaulted %v, %v, want %v", test.name, got, wrong, test.want)
		}
	}
}

func TestAnObjectThatIsNotValidAnyMoreIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	all := objects(t)
	if err := lastgood.Write(path, lastgood.State{Objects: all}); err != nil {
		t.Fatal(err)
	}
	got, wrong := lastgood.Read(path, "default", func(o *object.Object) []object.Finding {
		findings := []object.Finding{{Severity: condition.Warning, Message: "odd"}}
		if o.Kind == object.VirtualService {
			findings = append(findings, object.Finding{Field: "http", Severity: condition.Error,
				Message: "cannot be"})
		}
		return findings
	})
	if len(got.Objects) != len(all)-1 || len(wrong) != 1 {
		t.Fatalf("%v, %v", got.Objects, wrong)
	}
	if text := wrong[0].Error(); !strings.Contains(text,
		"VirtualService default/web, of "+all[0].File) || !strings.Contains(text, "cannot be") {
		t.Error(text)
	}
}

func TestAFileThatIsDamagedHoldsNothing(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "last-good.json")
	if err := lastgood.Write(path, lastgood.State{Objects: objects(t)[3:]}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		text []byte
		want string
	}{
		{"empty", nil, "unexpected end of JSON input"},
		{"cut off", whole[:len(whole)/2], "unexpected end of JSON input"},
		{"of another version", bytes.Replace(whole, []byte(`"version":1`), []byte(`"version":2`),
			1), "format version 2; supported is 1"},
		{"of another type", bytes.Replace(whole, []byte(`"line":1`), []byte(`"line":"one"`), 1),
			"line"},
		{"of an unknown kind", bytes.Replace(whole, []byte(`"ServiceEntry"`),
			[]byte(`"ServiceExit"`), 1), "unsupported kind"},
		{"of another kind", bytes.Replace(whole, []byte(`"ServiceEntry"`), []byte(`"Gateway"`), 1),
			"decode the spec"},
		{"with a field of another version", bytes.Replace(whole, []byte(`"resolution"`),
			[]byte(`"revolution"`), 1), "decode the spec"},
		{"too large", bytes.Repeat([]byte(" "), 16<<20+1), "more than 16777216 bytes"},
	} {
		if err := os.WriteFile(path, test.text, 0o600); err != nil {
			t.Fatal(err)
		}
		state, wrong := lastgood.Read(path, "default", validate.Object)
		if !state.IsEmpty() || len(wrong) != 1 || !strings.Contains(wrong[0].Error(), test.want) {
			t.Errorf("%s: %v, %v", test.name, state.Objects, wrong)
		}
		if lost := !strings.Contains(wrong[0].Error(),
			"not valid any more"); state.PolicyLocationsIncomplete != lost {
			t.Errorf("%s: lost %v", test.name, state.PolicyLocationsIncomplete)
		}
	}
	if state, wrong := lastgood.Read(folder, "default", validate.Object); !state.IsEmpty() ||
		len(wrong) != 1 {
		t.Errorf("a folder: %v, %v", state, wrong)
	}
	link := filepath.Join(folder, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if state, wrong := lastgood.Read(link, "default", validate.Object); !state.IsEmpty() ||
		len(wrong) != 1 {
		t.Errorf("a link: %v, %v", state, wrong)
	}
}

func TestWhatIsTooLargeIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	if err := lastgood.Write(path, lastgood.State{MeshConfig: []byte("a")}); err != nil {
		t.Fatal(err)
	}
	if err := lastgood.Write(path,
		lastgood.State{MeshConfig: bytes.Repeat([]byte("a"), 16<<20)}); err == nil ||
		!strings.Contains(err.Error(), "more than the limit of 16777216") {
		t.Errorf("too large: %v", err)
	}
	large := bytes.Repeat([]byte("a"), 16<<20)
	folders, policies := map[string]uint64{"/mesh.d": 1}, map[string]int{"/mesh.d/a.yaml": 1}
	for _, test := range []struct{ state, want lastgood.State }{
		{lastgood.State{MeshConfig: large}, lastgood.State{PolicyLocationsIncomplete: true}},
		{lastgood.State{MeshConfig: large, PolicyFolderInodes: folders,
			PolicyCountsByFile: policies},
			lastgood.State{PolicyFolderInodes: folders, PolicyCountsByFile: policies,
				PolicyLocationsIncomplete: true}},
		{lastgood.State{PolicyFolderInodes: folders,
			PolicyCountsByFile: map[string]int{string(large): 1}},
			lastgood.State{PolicyLocationsIncomplete: true}},
	} {
		if err := lastgood.Write(path, test.state); err == nil {
			t.Error("too large: no error")
		}
		got, wrong := lastgood.Read(path, "default", nothing)
		if !cmp.Equal(got, test.want) || len(wrong) != 1 {
			t.Errorf("too large: %v, %v", got, wrong)
		}
	}
}

// TestUnusablePolicyOfAPathThatIsAway reads a state with a missing path and an object below it that
// is no longer valid. If the object is a policy, the policies of that path must count as unknown.
func TestUnusablePolicyOfAPathThatIsAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	for kind, want := range map[string]lastgood.State{
		"AuthorizationPolicy": {MissingPaths: []string{"/mesh.d/bc"},
			PolicyFolderInodes: map[string]uint64{"/mesh.d/b": 0},
			PolicyCountsByFile: map[string]int{"/mesh.d/b/c/a.yaml": math.MaxInt32}},
		"ServiceEntry": {MissingPaths: []string{"/mesh.d/b", "/mesh.d/bc"}},
	} {
		if err := os.WriteFile(path, []byte(`{"version":1,"away":["/mesh.d/b","/mesh.d/bc"],`+
			`"objects":[{"kind":"`+kind+`","namespace":"shop","name":"a","file":"/mesh.d/b/c/a.yaml",`+
			`"spec":{"odd":1}}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		got, wrong := lastgood.Read(path, "default", validate.Object)
		if diff := cmp.Diff(want, got); diff != "" || len(wrong) != 1 {
			t.Errorf("%s: %v (-want +got):\n%s", kind, wrong, diff)
		}
	}
}
