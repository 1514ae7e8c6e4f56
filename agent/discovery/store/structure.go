package store

import (
	"math"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// structure decodes any mapping into a Struct.
func (d *decoder) structure(node *yaml.Node, into *structpb.Struct, at *path, depth int) {
	if node.Kind != yaml.MappingNode {
		d.refuse(node, at, "must be a mapping, is "+describe(node), "")
		return
	}
	into.Fields = map[string]*structpb.Value{}
	d.pairs(node, at, func(key, value *yaml.Node) {
		child := path{parent: at, name: key.Value, key: key.Value == ""}
		into.Fields[key.Value] = d.anything(value, &child, depth+1)
	})
}

func (d *decoder) anything(node *yaml.Node, at *path, depth int) *structpb.Value {
	node, ok := d.visit(node, at, depth)
	if !ok {
		return structpb.NewNullValue()
	}
	switch node.Kind {
	case yaml.MappingNode:
		fields := &structpb.Struct{}
		d.structure(node, fields, at, depth)
		return structpb.NewStructValue(fields)
	case yaml.SequenceNode:
		list := &structpb.ListValue{}
		for i, element := range node.Content {
			child := path{parent: at, index: i}
			list.Values = append(list.Values, d.anything(element, &child, depth+1))
		}
		return structpb.NewListValue(list)
	}
	s := resolve(node)
	switch s.kind {
	case nullScalar:
		return structpb.NewNullValue()
	case boolScalar:
		return structpb.NewBoolValue(s.boolean)
	case intScalar, floatScalar:
		if math.IsNaN(s.float) || math.IsInf(s.float, 0) {
			d.refuse(node, at, s.text+" is no number in JSON", "write a finite number")
		}
		return structpb.NewNumberValue(s.float)
	}
	return structpb.NewStringValue(s.text)
}
