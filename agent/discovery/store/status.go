package store

import "go.yaml.in/yaml/v3"

// conditions returns the conditions in an object's status, by type. It ignores malformed
// conditions, because people do not write a status.
func conditions(status *yaml.Node) map[string]string {
	found := map[string]string{}
	for _, condition := range member(status, "conditions").Content {
		if name := member(condition, "type"); name.Kind == yaml.ScalarNode {
			found[name.Value] = member(condition, "status").Value
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// member returns the value of a key in a mapping, or an empty node if the key is missing.
func member(node *yaml.Node, key string) *yaml.Node {
	if node.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == key {
				return node.Content[i+1]
			}
		}
	}
	return &yaml.Node{}
}
