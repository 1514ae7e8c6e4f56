package store

import (
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/agent/spelling"
)

// header holds the fields of an object, with a spec that is not decoded yet.
type header struct {
	apiVersion, kind, name, namespace string
	// the object has no namespace, and namespace is the default
	defaulted           bool
	created             time.Time
	labels, annotations map[string]string
	spec, items         *yaml.Node
	conditions          map[string]string
	// the object may restrict access: its spec resembles that of a policy, or the YAML is invalid
	// and one of its keys "kind" or "apiVersion" (of possibly several) is that of a policy
	restricts bool
}

// header reads all fields of an object, without decoding its spec. Which fields are valid depends
// on the kind, which may come last.
func (r *reader) header(d *decoder, node *yaml.Node, depth int) *header {
	h := &header{namespace: r.namespace, defaulted: true}
	var others []func()
	d.pairs(node, nil, func(key, value *yaml.Node) {
		at := &path{name: key.Value}
		value, ok := d.visit(value, at, depth)
		if !ok {
			return
		}
		switch key.Value {
		case "apiVersion":
			h.apiVersion = d.text(value, at)
		case "kind":
			h.kind = d.text(value, at)
		case "spec":
			if !isNull(value) {
				h.spec = value
			}
		case "items":
			h.items = value
		case "status":
			h.conditions = conditions(value)
		case "metadata":
			others = append(others, func() {
				if value.Kind != yaml.MappingNode {
					d.refuse(value, at, "must be a mapping, is "+describe(value), "")
					return
				}
				d.pairs(value, at, func(key, value *yaml.Node) {
					r.metadata(d, h, key, value, at, depth)
				})
			})
		default:
			others = append(others, func() {
				if h.isIstios() {
					d.refuse(key, at, fmt.Sprintf("unknown key %q beside spec", key.Value),
						"move it into spec or remove it")
				}
			})
		}
	})
	for i := 0; d.failed && i+1 < len(node.Content); i += 2 {
		other, value := header{}, resolveAlias(node.Content[i+1]).Value
		switch node.Content[i].Value {
		case "kind":
			other.kind = value
		case "apiVersion":
			other.apiVersion = value
		}
		h.restricts = h.restricts || other.mayRestrict()
	}
	if !h.isIstios() && h.spec != nil {
		h.restricts = resemblesPolicy(h.spec)
	}
	for _, read := range others {
		read()
	}
	return h
}

// isIstios reports whether an API server would validate the object as one of the kinds of Istio
// that are supported.
func (h *header) isIstios() bool {
	return unrestricting[group(h.apiVersion)] != nil || h.mayRestrict()
}

func (r *reader) metadata(d *decoder, h *header, key, value *yaml.Node, at *path, depth int) {
	at = &path{parent: at, name: key.Value}
	value, ok := d.visit(value, at, depth)
	if !h.isIstios() {
		if key.Value == "name" && ok && value.Kind == yaml.ScalarNode {
			h.name = value.Value // messages about later fields contain the name
		}
		return
	}
	if !slices.Contains(metadataKeys, key.Value) {
		fix := "remove it"
		if near := spelling.NearestWord(key.Value, metadataKeys); near != "" {
			fix = fmt.Sprintf("did you mean %s?", near)
		}
		d.refuse(key, at, fmt.Sprintf("unknown key %q in metadata", key.Value), fix)
		return
	}
	if !ok || isNull(value) {
		return
	}
	switch key.Value {
	case "name":
		h.name = d.text(value, at)
		if h.name != "" && !isSubdomain(h.name) {
			d.refuse(value, at, fmt.Sprintf("%q is no name of an object", h.name),
				"write up to 253 lower-case letters, digits, - and ., a letter or digit first "+
					"and last")
		}
	case "namespace":
		if namespace := d.text(value, at); namespace != "" {
			h.namespace, h.defaulted = namespace, false
		}
		if !h.defaulted && !isLabel(h.namespace) {
			d.refuse(value, at, fmt.Sprintf("%q is no namespace", h.namespace),
				"write up to 63 lower-case letters, digits and -, a letter or digit first and last")
		}
	case "labels":
		h.labels = d.texts(value, at, depth)
		d.labels(value, at, h.labels)
	case "annotations":
		h.annotations = d.texts(value, at, depth)
		d.annotations(value, at, h.annotations)
	case "creationTimestamp":
		created, err := time.Parse(time.RFC3339, value.Value)
		if err != nil {
			d.refuse(value, at, fmt.Sprintf("%q is no time", value.Value),
				"write it as 2006-01-02T15:04:05Z")
			return
		}
		h.created = created
	}
}

// text reads a string. Any other value is an error, and text returns "".
func (d *decoder) text(node *yaml.Node, at *path) string {
	if node.Kind == yaml.ScalarNode {
		if s := resolve(node); s.kind == stringScalar {
			return s.text
		}
		d.refuse(node, at, fmt.Sprintf("must be text, is %s (%s)", describe(node), node.Value),
			fmt.Sprintf("put it in quotes: %q", node.Value))
		return ""
	}
	d.refuse(node, at, "must be text, is "+describe(node), "")
	return ""
}

func (d *decoder) texts(node *yaml.Node, at *path, depth int) map[string]string {
	if node.Kind != yaml.MappingNode {
		d.refuse(node, at, "must be a mapping, is "+describe(node), "")
		return nil
	}
	texts := make(map[string]string, len(node.Content)/2)
	d.pairs(node, at, func(key, value *yaml.Node) {
		child := &path{parent: at, name: key.Value, key: true}
		if value, ok := d.visit(value, child, depth); ok && !isNull(value) {
			texts[key.Value] = d.text(value, child)
		}
	})
	return texts
}
