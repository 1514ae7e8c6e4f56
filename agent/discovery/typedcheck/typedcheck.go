// Package typedcheck checks typed_configs against the types that are linked into the program.
// outrider-bootstrap links all of Envoy's types.
package typedcheck

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/spelling"
	"outrider.org/outrider/agent/typedconfig"
)

// Check returns the findings of each configuration.
func Check(configs []typedconfig.Config) [][]typedconfig.Finding {
	all := make([][]typedconfig.Finding, len(configs))
	for i, config := range configs {
		all[i] = check(config)
	}
	return all
}

func check(config typedconfig.Config) []typedconfig.Finding {
	known, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(config.Type))
	if err != nil {
		return []typedconfig.Finding{unknownType("", config.Type)}
	}
	var value map[string]any
	if err := json.Unmarshal(config.Value, &value); err != nil {
		return []typedconfig.Finding{{Severity: condition.Error, Message: err.Error()}}
	}
	problems, unlinked := store.DecodeEnvoyMessageStrict(value, known.New().Interface(), "")
	var findings []typedconfig.Finding
	for _, p := range problems {
		findings = append(findings, typedconfig.Finding{Field: p.Field, Severity: p.Severity,
			Message: p.Message, Fix: p.Fix, UnknownField: p.UnknownField})
	}
	for _, f := range unlinked {
		findings = append(findings, unknownType(f.Field, f.Type))
	}
	return findings
}

func unknownType(field, name string) typedconfig.Finding {
	fix := ""
	if near := nearestType(name); near != "" {
		fix = fmt.Sprintf("did you mean %s?", near)
	}
	return typedconfig.Finding{Field: field, Severity: condition.Warning,
		Message: "is checked by Envoy alone: the API of Envoy " + typedconfig.LinkedEnvoyAPI +
			" has no type " + name, Fix: fix}
}

// nearestType returns a type with a similar name in the same package, or with the same name in
// another package.
func nearestType(name string) string {
	wanted := protoreflect.FullName(name)
	var near []string
	elsewhere := ""
	protoregistry.GlobalTypes.RangeMessages(func(known protoreflect.MessageType) bool {
		switch at := known.Descriptor().FullName(); {
		case at.Parent() == wanted.Parent():
			near = append(near, string(at.Name()))
		case at.Name() == wanted.Name() && (elsewhere == "" || string(at) < elsewhere):
			elsewhere = string(at)
		}
		return true
	})
	if found := spelling.NearestWord(string(wanted.Name()), near); found != "" {
		return string(wanted.Parent().Append(protoreflect.Name(found)))
	}
	return elsewhere
}
