// Package meshtest helps tests that translate Istio's YAML and need no Envoy.
package meshtest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/resource"
)

// Namespace is the namespace of objects without a namespace.
const Namespace = "shop"

// Mesh is a model.Mesh whose objects are read from a YAML text.
type Mesh struct {
	*model.Mesh
	Text string // text with the current objects as YAML

	t     testing.TB
	path  string
	store *store.Store
}

// New returns a mesh with the objects of a YAML text, and the hosts, gateways and kinds that they
// affect.
func New(t testing.TB, text string) (*Mesh, model.ChangeSummary) {
	t.Helper()
	m := empty(t)
	touched := m.Set(text)
	return m, touched
}

func empty(t testing.TB) *Mesh {
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	return &Mesh{Mesh: model.NewMesh("cluster.local", mesh.Default()), t: t, path: path,
		store: store.New(store.Options{Paths: []string{path}, Namespace: Namespace,
			Validate: validate.Object})}
}

// Set replaces all objects by those of a text, and returns what the change affects. Problems fail
// the test.
func (m *Mesh) Set(text string) model.ChangeSummary {
	m.t.Helper()
	touched := m.SetAllowingWarnings(text)
	if problems := m.store.Problems(); len(problems) > 0 {
		m.t.Fatalf("%v", problems)
	}
	return touched
}

// SetAllowingWarnings is like Set, but permits warnings of validation.
func (m *Mesh) SetAllowingWarnings(text string) model.ChangeSummary {
	m.t.Helper()
	m.Text = text
	if err := os.WriteFile(m.path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return m.Apply(m.store.Reload([]string{m.path}))
}

// Message returns the decoded message of a resource.
func Message(t testing.TB, r *resource.Resource) proto.Message {
	t.Helper()
	var packed anypb.Any
	if err := proto.Unmarshal(r.EncodedAny(), &packed); err != nil {
		t.Fatal(err)
	}
	message, err := packed.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// ExpectMessage fails the test unless a message contains all values of a YAML text in protobuf's
// JSON form: every key of a mapping (null: the field is not set), and every element of a list.
func ExpectMessage(t testing.TB, want string, got proto.Message) {
	t.Helper()
	text, err := protojson.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var wanted, actual any
	if err := yaml.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &actual); err != nil {
		t.Fatal(err)
	}
	if differences := compare("", wanted, actual); len(differences) > 0 {
		t.Errorf("%s\ngot %s", strings.Join(differences, "\n"), text)
	}
}

func compare(path string, want, got any) []string {
	var differences []string
	switch want := want.(type) {
	case map[string]any:
		mapping, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s: %v is not a mapping", path, got)}
		}
		for key, value := range want {
			differences = append(differences, compare(path+"."+key, value, mapping[key])...)
		}
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			return []string{fmt.Sprintf("%s: %d elements, want %d", path, len(list), len(want))}
		}
		for i := range want {
			differences = append(differences,
				compare(fmt.Sprintf("%s[%d]", path, i), want[i], list[i])...)
		}
	default:
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return []string{fmt.Sprintf("%s: %v, want %v", path, got, want)}
		}
	}
	return differences
}

// MutatedTexts returns the texts of a sequence of changes. The first change moves all objects down
// by one line, the second one moves them back. The following ones each remove one object and
// restore the object removed before. At last only the first object is left, and then all objects
// are restored.
func (m *Mesh) MutatedTexts() []string {
	objects := strings.SplitAfter(m.Text, "\n---\n")
	without := func(i int) string {
		i %= len(objects)
		return strings.Join(slices.Delete(slices.Clone(objects), i, i+1), "")
	}
	steps := []string{"\n" + m.Text, m.Text}
	for _, next := range []int{1, 2} {
		for i := range objects {
			steps = append(steps, without(i*next))
		}
	}
	return append(steps, objects[0], m.Text)
}

// NewModel returns a new model.Mesh with the objects of the mesh.
func (m *Mesh) NewModel() *model.Mesh {
	fresh := model.NewMesh(m.Domain(), m.MeshConfig())
	fresh.Apply(store.New(store.Options{Paths: []string{m.path}, Namespace: Namespace,
		Validate: validate.Object}).Reload([]string{m.path}))
	return fresh
}
