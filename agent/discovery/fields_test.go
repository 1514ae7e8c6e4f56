package discovery_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
)

// TestEveryFieldHasACase holds the cases of the suite against Istio's API: each field, each value
// of an enumeration and each member of a oneof stands in a case that makes requests, or in
// testdata/conformance/unshown with the reason.
func TestEveryFieldHasACase(t *testing.T) {
	api := readAPI()
	s := newSuite(t)
	// nobody is asked
	s.variables["HERE"], s.variables["UNKNOWN"], s.variables["FAR"] = "8001", "8002", "8003"
	shown := map[string]bool{}
	cases := s.cases(t, "*")
	for _, c := range cases {
		if len(c.exchanges) > 0 {
			api.collect(t, c.mesh, c.meshConfig, shown)
		}
	}
	unshown := readUnshown(t, api)
	known := everyConfiguration(t, cases)
	for _, key := range api.keys {
		switch reason := unshown[key]; {
		case strings.HasPrefix(reason, "default"):
			api.isDefault(t, key, known)
		case shown[key] && reason != "" && !inCases(reason):
			t.Errorf("testdata/conformance/unshown has %s, and so has a case", key)
		case shown[key]:
		case reason == "":
			t.Errorf("no case has %s", key)
		default:
			api.justify(t, key, reason)
		}
	}
}

// istioAPI is what can be written: objects by kind, and MeshConfig as far as it is carried out.
type istioAPI struct {
	kinds map[string]proto.Message
	// paths is where a kind has a message first: "VirtualService" and
	// istio.networking.v1alpha3.HTTPRetry are VirtualService.http.retries. What is used at several
	// places of a kind counts once.
	paths map[string]map[protoreflect.FullName]string
	// keys are fields by path, KIND.FIELD.FIELD, and values of enumerations, KIND.FIELD=VALUE.
	keys []string
	// wordless are the values that an enumeration has without a word: nobody can take them out.
	wordless map[string]bool
}

func readAPI() *istioAPI {
	a := &istioAPI{paths: map[string]map[protoreflect.FullName]string{},
		wordless: map[string]bool{}, kinds: map[string]proto.Message{
			"VirtualService":  &networking.VirtualService{},
			"DestinationRule": &networking.DestinationRule{}, "Gateway": &networking.Gateway{},
			"ServiceEntry":  &networking.ServiceEntry{},
			"WorkloadEntry": &networking.WorkloadEntry{},
			"WorkloadGroup": &networking.WorkloadGroup{},
			"Sidecar":       &networking.Sidecar{}, "EnvoyFilter": &networking.EnvoyFilter{},
			"MeshConfig": &meshapi.MeshConfig{}}}
	for kind, message := range a.kinds {
		a.walk(kind, message.ProtoReflect().Descriptor())
	}
	slices.Sort(a.keys)
	return a
}

// walk goes through the messages of a kind, the nearest first.
func (a *istioAPI) walk(kind string, root protoreflect.MessageDescriptor) {
	paths := map[protoreflect.FullName]string{root.FullName(): kind}
	a.paths[kind] = paths
	for waiting := []protoreflect.MessageDescriptor{root}; len(waiting) > 0; waiting = waiting[1:] {
		fields := waiting[0].Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			if !meshfile.Supported(field) {
				continue
			}
			path := paths[waiting[0].FullName()] + "." + field.JSONName()
			value := valueOf(field)
			if enum := value.Enum(); enum != nil {
				for j := range enum.Values().Len() {
					key := path + "=" + string(enum.Values().Get(j).Name())
					a.keys = append(a.keys, key)
					a.wordless[key] = enum.Values().Get(j).Number() == 0 && !field.HasPresence() &&
						!field.IsList() && !field.IsMap()
				}
				continue
			}
			a.keys = append(a.keys, path)
			if m := value.Message(); m != nil && isIstios(m) && paths[m.FullName()] == "" {
				paths[m.FullName()] = path
				waiting = append(waiting, m)
			}
		}
	}
}

// valueOf is the field itself, or the values of a map.
func valueOf(field protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if field.IsMap() {
		return field.MapValue()
	}
	return field
}

func isIstios(m protoreflect.MessageDescriptor) bool {
	return strings.HasPrefix(string(m.FullName()), "istio.")
}

// collect reads YAML as the server does, and adds the keys of what is taken of it.
func (a *istioAPI) collect(t *testing.T, mesh, meshConfig string, into map[string]bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, path, mesh)
	for _, change := range store.New(store.Options{Paths: []string{path}, Namespace: "shop",
		Validate: validate.Object}).Load() {
		a.fields(string(change.New.Kind), change.New.Spec.ProtoReflect(), into)
	}
	var m meshapi.MeshConfig
	for _, p := range store.Message("meshconfig.yaml", []byte(meshConfig), &m, nothing) {
		if p.Severity == condition.Error {
			t.Fatal(p)
		}
	}
	if meshConfig != "" {
		a.fields("MeshConfig", m.ProtoReflect(), into)
	}
}

// fields adds the keys of what a message has. What an enumeration is without a word is had by every
// message.
func (a *istioAPI) fields(kind string, m protoreflect.Message, into map[string]bool) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		path := a.paths[kind][m.Descriptor().FullName()] + "." + field.JSONName()
		enum := valueOf(field).Enum()
		if !m.Has(field) && (enum == nil || field.HasPresence() || field.IsList()) {
			continue
		}
		into[path] = true
		one := func(v protoreflect.Value) {
			if enum != nil {
				into[path+"="+string(enum.Values().ByNumber(v.Enum()).Name())] = true
			} else if message := valueOf(field).Message(); message != nil && isIstios(message) {
				a.fields(kind, v.Message(), into)
			}
		}
		value := m.Get(field)
		switch {
		case field.IsMap():
			value.Map().Range(func(_ protoreflect.MapKey,
				v protoreflect.Value) bool {
				one(v)
				return true
			})
		case field.IsList():
			for j := range value.List().Len() {
				one(value.List().Get(j))
			}
		default:
			one(value)
		}
	}
}
