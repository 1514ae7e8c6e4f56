package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"outrider.org/outrider/scripts/parts"
)

// places are EnvoyFilter patches that can contain a typed_config, one of each kind. TYPED is a
// placeholder for the typed_config, NUMBER for a number that differs in each EnvoyFilter.
var places = []string{
	"{applyTo: HTTP_FILTER, patch: {operation: INSERT_FIRST, value: {name: a, typed_config: TYPED}}}",
	"{applyTo: NETWORK_FILTER, patch: {operation: ADD, value: {name: a, typed_config: TYPED}}}",
	"{applyTo: LISTENER_FILTER, patch: {operation: ADD, value: {name: a, typed_config: TYPED}}}",
	"{applyTo: LISTENER, patch: {operation: MERGE, value: {access_log: [{name: a, typed_config: TYPED}]}}}",
	"{applyTo: FILTER_CHAIN, patch: {operation: MERGE, value: {filters: [{name: a, typedConfig: TYPED}]}}}",
	"{applyTo: CLUSTER, patch: {operation: MERGE, value: {typed_extension_protocol_options: {a.b: TYPED}}}}",
	"{applyTo: ROUTE_CONFIGURATION, patch: {operation: MERGE, value: {typed_per_filter_config: {a.b: TYPED}}}}",
	"{applyTo: VIRTUAL_HOST, patch: {operation: MERGE, value: {typed_per_filter_config: {a.b: TYPED}}}}",
	"{applyTo: HTTP_ROUTE, patch: {operation: MERGE, value: {typed_per_filter_config: {a.b: TYPED}}}}",
	"{applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: fNUMBER, typed_config: TYPED}}}",
}

// TestMeshCheck_FindsMisspeltFieldsOfEveryType checks EnvoyFilters with typed_configs of 200 types.
// A misspelt field must be found in each, and nothing with the right spelling. Some typed_configs
// are nested in another one or written as a TypedStruct.
func TestMeshCheck_FindsMisspeltFieldsOfEveryType(t *testing.T) {
	const wanted = 200
	all := extensions()
	if len(all) < wanted {
		t.Fatalf("Envoy has %d types with a field", len(all))
	}
	var good, bad strings.Builder
	lines := map[int]string{}
	for i := range wanted {
		of := all[i*len(all)/wanted]
		field, value, _ := sample(of, 2)
		write := func(into *strings.Builder, name string) int {
			line := strings.Count(into.String(), "\n")
			content := fmt.Sprintf("{\n  \"@type\": type.googleapis.com/%s,\n  %s: %s\n}", of.FullName(),
				name, value)
			line += 5
			switch i % 4 {
			case 1:
				content = fmt.Sprintf("{\"@type\": type.googleapis.com/xds.type.v3.TypedStruct, "+
					"type_url: type.googleapis.com/%s, value: {\n\n  %s: %s\n}}", of.FullName(), name, value)
			case 2:
				content = "{\"@type\": type.googleapis.com/envoy.extensions.filters.network.generic_proxy.v3." +
					"GenericProxy, filters: [{typed_config: " + content + "}]}"
			}
			fmt.Fprintf(into, "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\n"+
				"metadata: {name: f%d}\nspec: {configPatches: [%s]}\n---\n", i,
				strings.NewReplacer("TYPED", content, "NUMBER", fmt.Sprint(i)).Replace(places[i%len(places)]))
			return line + 1
		}
		write(&good, string(field))
		lines[write(&bad, string(field)+"x")] = string(of.FullName())
	}
	folder := t.TempDir()
	build := exec.Command(filepath.Join(parts.RepositoryRoot(), "scripts", "build"), folder,
		"./cmd/outrider",
		"./cmd/outrider-bootstrap")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if problems := meshCheck(t, folder, good.String()); len(problems) > 0 {
		t.Errorf("%d problems of what is right: %+v", len(problems), problems)
	}
	for _, p := range meshCheck(t, folder, bad.String()) {
		if p.Severity == "error" {
			if lines[p.Line] == "" || !strings.Contains(p.Message, "has no field") {
				t.Errorf("unexpected: %+v", p)
			}
			delete(lines, p.Line)
		}
	}
	if len(lines) > 0 {
		t.Errorf("%d of %d are not found: %v", len(lines), wanted, lines)
	}
	checkTooLarge(t, folder)

	program := filepath.Join(folder, "outrider-bootstrap")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 9\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	unchecked := 0
	for _, p := range meshCheck(t, folder, good.String()) {
		if unchecked++; p.Severity != "warning" || !strings.Contains(p.Message, "is checked by Envoy alone") {
			t.Errorf("without outrider-bootstrap: %+v", p)
		}
	}
	if unchecked < wanted/2 {
		t.Errorf("without outrider-bootstrap %d warnings", unchecked)
	}
}

// checkTooLarge checks two typed_configs that are too large, followed by a misspelt one, whose
// field must be found nevertheless.
func checkTooLarge(t *testing.T, folder string) {
	t.Helper()
	const filter = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\n" +
		"metadata: {name: NAME}\nspec: {configPatches: [{applyTo: HTTP_FILTER, patch: {operation: " +
		"INSERT_FIRST, value: {name: a, typed_config: {\n \"@type\": type.googleapis.com/envoy.extensions." +
		"filters.http.local_ratelimit.v3.LocalRateLimit,\n CONTENT}}}}]}\n---\n"
	var content string
	for name, field := range map[string]string{
		"numbers": "descriptors: [" + strings.Repeat("0,", 400_000) + "0]",
		"empty":   "descriptors: [" + strings.Repeat("{},", 300_000) + "{}]",
	} {
		content += strings.NewReplacer("NAME", name, "CONTENT", field).Replace(filter)
	}
	content += strings.NewReplacer("NAME", "misspelt", "CONTENT", "stat_prefixes: a").Replace(filter)
	warnings, wrong := 0, 0
	for _, p := range meshCheck(t, folder, content) {
		switch {
		case p.Severity == "warning" && strings.Contains(p.Message,
			"is checked by Envoy alone: the typed_config is too large"):
			warnings++
		case p.Severity == "error" && p.Line == 2*7+6 && strings.Contains(p.Message, "has no field"):
			wrong++
		default:
			t.Errorf("unexpected: %+v", p)
		}
	}
	if warnings != 2 || wrong != 1 {
		t.Errorf("%d warnings of what is too large, %d errors of what is misspelt", warnings, wrong)
	}
}

type problem struct {
	Line                          int
	Field, Severity, Message, Fix string
}

// meshCheck returns the problems that "outrider mesh check" finds in a file.
func meshCheck(t *testing.T, folder, content string) []problem {
	t.Helper()
	file := filepath.Join(folder, "mesh.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), filepath.Join(folder, "outrider"), "mesh", "check",
		"--json", file)
	out, err := command.Output()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	var found []problem
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return slices.DeleteFunc(found, func(p problem) bool {
		return p.Severity == "info" // only says that the patch matches no resource of this host
	})
}

// extensions returns the types of Envoy's extensions for which sample finds a field.
func extensions() []protoreflect.MessageDescriptor {
	found := map[string]protoreflect.MessageDescriptor{}
	protoregistry.GlobalTypes.RangeMessages(func(m protoreflect.MessageType) bool {
		of := m.Descriptor()
		_, inFile := of.Parent().(protoreflect.FileDescriptor)
		if _, _, ok := sample(of, 2); ok && inFile && !deprecated(of) && !typed(of) &&
			strings.HasPrefix(string(of.FullName()), "envoy.extensions.") {
			found[string(of.FullName())] = of
		}
		return true
	})
	var all []protoreflect.MessageDescriptor
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[name])
	}
	return all
}

// sample returns the name of the last field of a message for which it can generate a value, and the
// value as YAML.
func sample(of protoreflect.MessageDescriptor, depth int) (protoreflect.Name, string, bool) {
	for i := range of.Fields().Len() {
		field := of.Fields().Get(of.Fields().Len() - 1 - i)
		value, ok := sampleOf(field, depth)
		if !ok || deprecated(field) {
			continue
		}
		if field.IsMap() {
			value = "{a: " + value + "}"
		} else if field.IsList() {
			value = "[" + value + "]"
		}
		return field.Name(), value, true
	}
	return "", "", false
}

func sampleOf(field protoreflect.FieldDescriptor, depth int) (string, bool) {
	if field.IsMap() {
		if field.MapKey().Kind() != protoreflect.StringKind {
			return "", false
		}
		field = field.MapValue()
	}
	switch field.Kind() {
	case protoreflect.BoolKind:
		return "true", true
	case protoreflect.StringKind:
		return "text", true
	case protoreflect.BytesKind:
		return "dGV4dA==", true
	case protoreflect.EnumKind:
		return string(field.Enum().Values().Get(0).Name()), !deprecated(field.Enum().Values().Get(0))
	case protoreflect.MessageKind:
		switch name := field.Message().FullName(); name {
		case "google.protobuf.Duration":
			return "1s", true
		case "google.protobuf.BoolValue":
			return "false", true
		case "google.protobuf.UInt32Value", "google.protobuf.UInt64Value", "google.protobuf.DoubleValue":
			return "7", true
		case "google.protobuf.Struct":
			return "{any: [{thing: 1}]}", true
		default:
			if depth == 0 || name.Parent() == "google.protobuf" || typed(field.Message()) {
				return "", false
			}
			inner, value, ok := sample(field.Message(), depth-1)
			return fmt.Sprintf("{%s: %s}", inner, value), ok
		}
	}
	return "7", field.Kind() != protoreflect.GroupKind
}

// typed reports whether a message has a field typed_config.
func typed(of protoreflect.MessageDescriptor) bool { return of.Fields().ByName("typed_config") != nil }

func deprecated(of protoreflect.Descriptor) bool {
	switch options := of.Options().(type) {
	case *descriptorpb.FieldOptions:
		return options.GetDeprecated()
	case *descriptorpb.EnumValueOptions:
		return options.GetDeprecated()
	case *descriptorpb.MessageOptions:
		return options.GetDeprecated()
	}
	return false
}
