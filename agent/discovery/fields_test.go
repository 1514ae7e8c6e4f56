package discovery_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	extensions "istio.io/api/extensions/v1alpha1"
	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
)

// TestConformance_EveryFieldHasACase compares the cases of the suite with Istio's API. Each field,
// enum value and member of a oneof must be in a case with requests, or in
// testdata/conformance/unshown with the reason why it is not.
func TestConformance_EveryFieldHasACase(t *testing.T) {
	api := readAPI()
	s := newSuite(t)
	// no requests are sent, so any ports do
	s.variables["HERE"], s.variables["UNKNOWN"], s.variables["FAR"] = "8001", "8002", "8003"
	s.variables["NAMED"], s.variables["NAMEDTLS"] = "8004", "8005"
	s.variables["LINK"] = "8006"
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

// istioAPI describes the objects by kind, and the supported part of MeshConfig.
type istioAPI struct {
	kinds map[string]proto.Message
	// paths has the first path of a message in a kind: for "VirtualService" and
	// istio.networking.v1alpha3.HTTPRetry it is VirtualService.http.retries. Further paths of the
	// message in the kind are ignored.
	paths map[string]map[protoreflect.FullName]string
	// keys are the paths of fields, KIND.FIELD.FIELD, and of enum values, KIND.FIELD=VALUE.
	keys []string
	// wordless has the keys (as in keys) of the default values of enums. A default value applies
	// even if the YAML does not contain it.
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
			"PeerAuthentication":    &security.PeerAuthentication{},
			"AuthorizationPolicy":   &security.AuthorizationPolicy{},
			"RequestAuthentication": &security.RequestAuthentication{},
			"Telemetry":             &telemetry.Telemetry{},
			"WasmPlugin":            &extensions.WasmPlugin{},
			"TrafficExtension":      &extensions.TrafficExtension{},
			"MeshConfig":            &meshapi.MeshConfig{}}}
	for kind, message := range a.kinds {
		a.walk(kind, message.ProtoReflect().Descriptor())
	}
	slices.Sort(a.keys)
	return a
}

// walk visits the messages of a kind in breadth-first order.
func (a *istioAPI) walk(kind string, root protoreflect.MessageDescriptor) {
	paths := map[protoreflect.FullName]string{root.FullName(): kind}
	a.paths[kind] = paths
	for waiting := []protoreflect.MessageDescriptor{root}; len(waiting) > 0; waiting = waiting[1:] {
		fields := waiting[0].Fields()
		for i := range fields.Len() {
			field := fields.Get(i)
			if !meshfile.IsSupportedField(field) {
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

// valueOf returns the field itself, or for a map the field of its values.
func valueOf(field protoreflect.FieldDescriptor) protoreflect.FieldDescriptor {
	if field.IsMap() {
		return field.MapValue()
	}
	return field
}

func isIstios(m protoreflect.MessageDescriptor) bool {
	return strings.HasPrefix(string(m.FullName()), "istio.")
}

// collect reads YAML as the server does, and adds the keys of fields in valid objects.
func (a *istioAPI) collect(t *testing.T, mesh, meshConfig string, into map[string]bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, path, mesh)
	for _, change := range store.New(store.Options{Paths: []string{path}, Namespace: "shop",
		Validate: validate.Object}).Load() {
		a.fields(string(change.New.Kind), change.New.Spec.ProtoReflect(), into)
	}
	var m meshapi.MeshConfig
	for _, p := range store.DecodeMessage("meshconfig.yaml", []byte(meshConfig), &m, nothing) {
		if p.Severity == condition.Error {
			t.Fatal(p)
		}
	}
	if meshConfig != "" {
		a.fields("MeshConfig", m.ProtoReflect(), into)
	}
}

// fields adds the path of each field that is set in a message, such as Sidecar.egress.port, and for
// enums also the path with the value. An enum that is not set counts as set to its default value.
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
