package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/agent/discovery/object"
)

// metadataKeys lists the valid keys of metadata. Most of them have a meaning only in a cluster.
var metadataKeys = []string{"name", "namespace", "labels", "annotations", "creationTimestamp",
	"generateName", "uid", "resourceVersion", "generation",
	"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", "ownerReferences",
	"managedFields"}

const (
	longestLabel     = 63
	longestSubdomain = 253
	mostAnnotations  = 256 << 10 // total size of keys and values in bytes
)

// isLabel reports whether a text is a DNS label as in Kubernetes: lower-case letters, digits and
// hyphens.
func isLabel(text string) bool {
	return object.IsIdentifier(text, "-", longestLabel) && text == strings.ToLower(text)
}

// isSubdomain reports whether a text is a valid object name: DNS labels of any length, separated by
// dots.
func isSubdomain(text string) bool {
	for label := range strings.SplitSeq(text, ".") {
		if !object.IsIdentifier(label, "-", longestSubdomain) || label != strings.ToLower(label) {
			return false
		}
	}
	return len(text) <= longestSubdomain
}

// isQualified reports whether a text is a valid key of a label or annotation: a name, optionally
// after a domain and a slash.
func isQualified(text string) bool {
	domain, name, found := strings.Cut(text, "/")
	if !found {
		domain, name = "x", text
	}
	return isSubdomain(domain) && object.IsIdentifier(name, "-_.", longestLabel)
}

func (d *decoder) labels(node *yaml.Node, at *path, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		child := &path{parent: at, name: key, key: true}
		if !isQualified(key) {
			d.refuse(node, child, fmt.Sprintf("%q is no label", key),
				"write letters, digits and -_. between letters or digits")
		}
		if value := labels[key]; value != "" && !object.IsIdentifier(value, "-_.", longestLabel) {
			d.refuse(node, child, fmt.Sprintf("%q is no label's value", value),
				"write up to 63 letters, digits and -_. between letters or digits")
		}
	}
}

func (d *decoder) annotations(node *yaml.Node, at *path, annotations map[string]string) {
	size := 0
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		size += len(key) + len(annotations[key])
		if !isQualified(strings.ToLower(key)) {
			d.refuse(node, &path{parent: at, name: key, key: true},
				fmt.Sprintf("%q is no annotation", key),
				"write letters, digits and -_. between letters or digits")
		}
	}
	if size > mostAnnotations {
		d.refuse(node, at, fmt.Sprintf("are %d bytes, more than the %d that an API server takes",
			size,
			mostAnnotations), "shorten them")
	}
}
