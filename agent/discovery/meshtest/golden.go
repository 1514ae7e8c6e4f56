package meshtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// EachCase runs a subtest for each txtar file that matches the pattern. Its files are
//
//	mesh.yaml        Istio's objects; validation may warn about them
//	meshconfig.yaml  Istio's MeshConfig, may be missing
//	proxy.yaml       the fields of model.Node, may be missing: a sidecar of Namespace
//	want             what Golden compares
func EachCase(t *testing.T, pattern string, test func(t *testing.T, m *Mesh, proxy model.Node)) {
	t.Helper()
	each(t, pattern, func(t *testing.T, _ string, archive *txtar.Archive) {
		m, proxy := read(t, archive)
		test(t, m, proxy)
	})
}

// Golden compares the result of output for each case with the file "want" of the case. With
// update set, it rewrites that file.
func Golden(t *testing.T, pattern string, update bool,
	output func(t *testing.T, m *Mesh, proxy model.Node) string) {
	t.Helper()
	each(t, pattern, func(t *testing.T, path string, archive *txtar.Archive) {
		m, proxy := read(t, archive)
		got := strings.ReplaceAll(output(t, m, proxy), m.path, filepath.Base(m.path))
		if update {
			archive.Files = slices.DeleteFunc(archive.Files,
				func(f txtar.File) bool { return f.Name == "want" })
			archive.Files = append(archive.Files, txtar.File{Name: "want", Data: []byte(got)})
			if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		if diff := cmp.Diff(fileOf(archive, "want"), got); diff != "" {
			t.Errorf("-want +got (go test -update rewrites it):\n%s", diff)
		}
	})
}

func each(t *testing.T, pattern string, test func(*testing.T, string, *txtar.Archive)) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no file matches %s (%v)", pattern, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			test(t, path, archive)
		})
	}
}

// read returns the mesh and the proxy of a test case.
func read(t *testing.T, archive *txtar.Archive) (*Mesh, model.Node) {
	t.Helper()
	m := empty(t)
	m.SetAllowingWarnings(fileOf(archive, "mesh.yaml"))
	for _, p := range m.store.Problems() {
		if p.Severity == condition.Error {
			t.Fatal(p)
		}
	}
	if text := fileOf(archive, "meshconfig.yaml"); text != "" {
		c, problems := meshfile.Parse("meshconfig.yaml", []byte(text))
		if len(problems) > 0 {
			t.Fatalf("meshconfig.yaml: %v", problems)
		}
		c.SystemRoots = "/etc/ssl/roots.pem"
		m.SetMeshConfig(c)
	}
	proxy := model.Node{Type: model.Sidecar, Namespace: Namespace}
	if err := yaml.UnmarshalStrict([]byte(fileOf(archive, "proxy.yaml")), &proxy); err != nil {
		t.Fatalf("proxy.yaml: %v", err)
	}
	return m, proxy
}

func fileOf(archive *txtar.Archive, name string) string {
	for _, f := range archive.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// ResourceTitle returns a YAML comment with type, name and origins of a resource.
func ResourceTitle(r *resource.Resource) string {
	return "# " + r.Type[strings.LastIndexByte(r.Type, '.')+1:] + " " + r.Name +
		FormatOrigins(r.Origins) + "\n"
}

// FormatOrigins returns " from OBJECT:LINE, …", or "" if there are none.
func FormatOrigins(origins []resource.Origin) string {
	var names []string
	for _, o := range origins {
		names = append(names, fmt.Sprintf("%s %s:%d", o.Kind, o.Name, o.Line))
	}
	if len(names) == 0 {
		return ""
	}
	return " from " + strings.Join(names, ", ")
}

// YAML returns a message as YAML with the field names of protobuf's JSON form. Mappings and lists
// that fit on a line are on one line. Fields with the same value in base (nil: empty) are left out;
// those that only base has are null. Fields named in without are left out at any depth.
func YAML(t testing.TB, message, base proto.Message, without ...string) string {
	t.Helper()
	value := fields(t, message)
	remove(value, without)
	for name, field := range fields(t, base) {
		if _, ok := value[name]; !ok {
			value[name] = nil
		} else if reflect.DeepEqual(value[name], field) {
			delete(value, name)
		}
	}
	var out strings.Builder
	block(&out, value, "", "")
	return out.String()
}

func remove(value any, names []string) {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range names {
			delete(value, name)
		}
		for _, field := range value {
			remove(field, names)
		}
	case []any:
		for _, element := range value {
			remove(element, names)
		}
	}
}

func fields(t testing.TB, message proto.Message) map[string]any {
	t.Helper()
	if message == nil {
		return nil
	}
	text, err := protojson.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value map[string]any
	if err := decoder.Decode(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

const width = 100 // maximum length of a line of YAML, in columns

// block writes a mapping or list, with each field or element on a line of its own. first is the
// indent of the first line, which may follow the dash of an element.
func block(out *strings.Builder, value any, first, indent string) {
	item := func(head string, value any) {
		line := first + head + " " + flow(value)
		first = indent
		switch {
		case len(line) <= width || !isCollection(value):
			out.WriteString(line + "\n")
		case head == "-":
			block(out, value, indent+"- ", indent+"  ")
		default:
			out.WriteString(line[:strings.Index(line, head)+len(head)] + "\n")
			block(out, value, indent+"  ", indent+"  ")
		}
	}
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			item(key+":", value[key])
		}
	case []any:
		for _, element := range value {
			item("-", element)
		}
	}
}

func isCollection(value any) bool {
	switch value.(type) {
	case map[string]any, []any:
		return true
	}
	return false
}

// flow returns the form of a value that fits on one line.
func flow(value any) string {
	var parts []string
	switch value := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(value)) {
			parts = append(parts, key+": "+flow(value[key]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		for _, element := range value {
			parts = append(parts, flow(element))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case string:
		value = strings.TrimPrefix(value, resource.TypePrefix)
		if plain.MatchString(value) {
			return value
		}
		return strconv.Quote(value)
	case nil:
		return "null"
	}
	return fmt.Sprint(value)
}

// plain matches texts that need no quotes.
var plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./|-]*$`)

// FormatProblems returns a sorted list of problems, each on a line that begins with its severity.
func FormatProblems(problems []object.Problem) string {
	var text strings.Builder
	for _, p := range slices.SortedFunc(slices.Values(problems), object.Problem.Compare) {
		fmt.Fprintf(&text, "# %s: %s\n", p.Severity, p)
	}
	return text.String()
}
