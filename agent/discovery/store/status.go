package store

import "go.yaml.in/yaml/v3"

// conditions reads the conditions of an object's status, the status of each type. What is not of
// this form is left alone: nobody writes a status by hand.
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

// member returns the value of a mapping's key, an empty node if there is none.
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
