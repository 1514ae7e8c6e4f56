package discovery_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/validate"
)

// readUnshown reads testdata/conformance/unshown: for each field of Istio's API that no case tests,
// by its key, the reason.
func readUnshown(t *testing.T, api *istioAPI) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "conformance", "unshown"))
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, _ := strings.Cut(line, " ")
		prefix, many := strings.CutSuffix(pattern, "*")
		found := false
		for _, key := range api.keys {
			if key == pattern || many && strings.HasPrefix(key, prefix) {
				found, reasons[key] = true, reason
			}
		}
		if !found || reason == "" {
			t.Errorf("testdata/conformance/unshown: %q is not of the form KEY REASON, or Istio's "+
				"API has no such key", line)
		}
	}
	return reasons
}

var severities = map[string]condition.Severity{"refused": condition.Error,
	"warned": condition.Warning, "noted": condition.Info}

// justify checks whether the reason in testdata/conformance/unshown why no case tests a field is
// true: for "refused", for example, validation must refuse the field.
func (a *istioAPI) justify(t *testing.T, key, reason string) {
	t.Helper()
	claim, _, _ := strings.Cut(reason, ":")
	what, name, _ := strings.Cut(claim, " ")
	severity, reported := severities[what]
	switch {
	case reported:
		if findings := a.provoke(t, key); !slices.ContainsFunc(findings,
			func(f object.Finding) bool { return f.Severity == severity && isOf(key, f.Field) }) {
			t.Errorf("testdata/conformance/unshown: %s is not %s: %v", key, what, findings)
		}
	case what == "golden":
		archive, err := txtar.ParseFile(filepath.Join("testdata", "golden", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		if stripped, same := a.sameWithout(t, key, goldenConfiguration(archive)); stripped == 0 ||
			same {
			t.Errorf("testdata/conformance/unshown: testdata/golden/%s.txtar has %s %d times, "+
				"and becomes the same without: %t", name, key, stripped, same)
		}
	case what == "test":
		if names, err := testsHere(); err != nil || !slices.Contains(names, name) {
			t.Errorf("testdata/conformance/unshown: %s: there is no %s (%v)", key, name, err)
		}
	case what != "label":
		t.Errorf("testdata/conformance/unshown: %s: nobody can check %q", key, reason)
	}
}

// testsHere returns the names of the tests in this package.
var testsHere = sync.OnceValues(func() (names []string, err error) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		return nil, err
	}
	declared := regexp.MustCompile(`^func (Test\w+)\(`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if found := declared.FindStringSubmatch(line); found != nil {
				names = append(names, found[1])
			}
		}
	}
	return names, nil
})

// inCases reports whether conformance cases may contain a field that is listed in
// testdata/conformance/unshown for this reason.
func inCases(reason string) bool {
	return strings.HasPrefix(reason, "default") || strings.HasPrefix(reason, "label")
}

// fileOf returns the content of a file in an archive, "" if there is none.
func fileOf(archive *txtar.Archive, name string) string {
	for _, f := range archive.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

var index = regexp.MustCompile(`\[[^]]*\]`)

// isOf reports whether a finding is about the field of a key, or about one that contains the field.
// A finding in a WorkloadGroup is about the whole object.
func isOf(key, field string) bool {
	path, _, _ := strings.Cut(key, "=")
	kind, path, _ := strings.Cut(path, ".")
	field = index.ReplaceAllString(field, "")
	return field == path || strings.HasPrefix(path, field+".") && field != "" || field == "" &&
		kind == "WorkloadGroup"
}

// provoke sets the field of a key in an object, or in MeshConfig, and returns the findings of
// validation.
func (a *istioAPI) provoke(t *testing.T, key string) []object.Finding {
	t.Helper()
	path, value, _ := strings.Cut(key, "=")
	kind, path, _ := strings.Cut(path, ".")
	spec := proto.Clone(a.kinds[kind])
	m := spec.ProtoReflect()
	names := strings.Split(path, ".")
	for i, name := range names {
		field := m.Descriptor().Fields().ByJSONName(name)
		switch {
		case i == len(names)-1:
			set(m, field, value)
		case field.IsList():
			m = m.Mutable(field).List().AppendMutable().Message()
		default:
			m = m.Mutable(field).Message()
		}
	}
	if kind == "MeshConfig" {
		text, err := protojson.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		var findings []object.Finding
		_, problems := meshfile.Parse("mesh", text)
		for _, p := range problems {
			findings = append(findings, object.Finding{Field: p.Field, Severity: p.Severity,
				Message: p.Message})
		}
		return findings
	}
	complete(spec)
	return validate.Object(&object.Object{Key: object.Key{Kind: object.Kind(kind),
		Namespace: "shop", Name: "x"}, Spec: spec})
}

// set sets a field to any value, or to the named value of an enum.
func set(m protoreflect.Message, field protoreflect.FieldDescriptor, value string) {
	one := protoreflect.ValueOfString("x")
	switch {
	case field.IsList() && field.Message() != nil:
		m.Mutable(field).List().AppendMutable()
		return
	case field.IsMap() || field.IsList() && field.Kind() == protoreflect.StringKind:
		if field.IsMap() && field.MapValue().Kind() != protoreflect.StringKind {
			one = protoreflect.ValueOfUint32(1)
		}
		if field.IsMap() {
			m.Mutable(field).Map().Set(protoreflect.ValueOfString("x").MapKey(), one)
		} else {
			m.Mutable(field).List().Append(one)
		}
		return
	case field.Message() != nil:
		m.Mutable(field)
		return
	}
	switch field.Kind() {
	case protoreflect.EnumKind:
		one = protoreflect.ValueOfEnum(field.Enum().Values().
			ByName(protoreflect.Name(value)).Number())
	case protoreflect.BoolKind:
		one = protoreflect.ValueOfBool(true)
	case protoreflect.Uint32Kind:
		one = protoreflect.ValueOfUint32(1)
	case protoreflect.Int32Kind:
		one = protoreflect.ValueOfInt32(1)
	}
	m.Set(field, one)
}

// complete sets the fields that validation requires before it checks other fields.
func complete(spec proto.Message) {
	simple := func(tls *networking.ServerTLSSettings) {
		// if another field is set, the mode is not the field under test and may be changed
		if tls.GetMode() == networking.ServerTLSSettings_PASSTHROUGH && proto.Size(tls) > 0 {
			tls.Mode = networking.ServerTLSSettings_SIMPLE
		}
	}
	switch s := spec.(type) {
	case *networking.DestinationRule:
		if tls := s.TrafficPolicy.GetTls(); tls != nil {
			tls.Mode = networking.ClientTLSSettings_SIMPLE
		}
	case *networking.ServiceEntry:
		if len(s.Endpoints) > 0 {
			s.Resolution = networking.ServiceEntry_STATIC
		}
	case *networking.Gateway:
		for _, server := range s.Servers {
			simple(server.Tls)
			if server.Port == nil {
				server.Port = &networking.Port{}
			}
			server.Port.Number, server.Port.Name, server.Port.Protocol = 443, "x", "HTTPS"
			if server.Name != "" {
				server.Port.Protocol = "HTTP"
			}
		}
	case *networking.Sidecar:
		for _, listener := range s.Ingress {
			simple(listener.Tls)
			if listener.Port == nil {
				listener.Port = &networking.SidecarPort{}
			}
			listener.Port.Number, listener.Port.Protocol = 443, "HTTPS"
		}
	case *networking.EnvoyFilter:
		for _, p := range s.ConfigPatches {
			if p.Match != nil || p.Patch != nil {
				p.ApplyTo = networking.EnvoyFilter_LISTENER
			}
			if p.Patch == nil {
				p.Patch = &networking.EnvoyFilter_Patch{
					Operation: networking.EnvoyFilter_Patch_REMOVE}
			} else if p.Patch.FilterClass != networking.EnvoyFilter_Patch_UNSPECIFIED {
				p.Patch.Operation = networking.EnvoyFilter_Patch_REMOVE
			}
		}
	}
}

func nothing() []object.Finding { return nil }
