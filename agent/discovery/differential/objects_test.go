// Package differential compares Outrider's validation with Istio's: it collects objects, mutates
// them and compares what both accept.
package differential

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Object is a document with an object of a supported kind.
type Object struct {
	Where    string // file of the document, and its number in the file
	Document string
	value    map[string]any // the decoded document
}

var (
	separator = regexp.MustCompile(`(?m)^---.*\n`)
	// matches the line of Istio's fuzz corpora that contains the expected error
	expected  = regexp.MustCompile(`(?m)^_err:.*\n`)
	supported = []string{"ServiceEntry", "VirtualService", "DestinationRule", "Gateway", "Sidecar",
		"EnvoyFilter", "WorkloadEntry", "WorkloadGroup"}
	// kinds outside networking.istio.io; Objects sorts them last, in this order
	policies = []string{"PeerAuthentication", "RequestAuthentication", "AuthorizationPolicy",
		"Telemetry", "WasmPlugin", "TrafficExtension"}
)

// Objects returns the distinct objects in the YAML, JSON and txtar files below folders, in order.
func Objects(folders ...string) ([]Object, error) {
	var all []Object
	seen := map[string]bool{}
	for _, folder := range folders {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json",
				".txtar"},
				filepath.Ext(path)) {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(folder, path)
			for i, document := range documents(string(text)) {
				value, key := decode(document)
				if value == nil || seen[key] {
					continue
				}
				seen[key] = true
				all = append(all, Object{Where: fmt.Sprintf("%s document %d", name, i),
					Document: document,
					value:    value})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("gather objects: %w", err)
		}
	}
	slices.SortStableFunc(all, func(a, b Object) int { return a.policy() - b.policy() })
	return all, nil
}

// policy returns the index of the object's kind in policies, -1 for other kinds.
func (o Object) policy() int {
	kind, _ := o.value["kind"].(string)
	return slices.Index(policies, kind)
}

// documents splits a file into YAML documents and txtar files.
func documents(text string) []string {
	text = regexp.MustCompile(`(?m)^-- .* --$`).ReplaceAllString(text, "---")
	return separator.Split(expected.ReplaceAllString(text, ""), -1)
}

// decode returns a document that is an object of a supported kind, decoded and as JSON; nil if it
// is not.
func decode(document string) (map[string]any, string) {
	if !strings.Contains(document, ".istio.io/") {
		return nil, ""
	}
	var value map[string]any
	if yaml.Unmarshal([]byte(document), &value) != nil {
		return nil, ""
	}
	apiVersion, _ := value["apiVersion"].(string)
	kind, _ := value["kind"].(string)
	group, kinds := "networking.istio.io/", supported
	for _, other := range []string{"security.istio.io/", "telemetry.istio.io/",
		"extensions.istio.io/"} {
		if strings.HasPrefix(apiVersion, other) {
			group, kinds = other, policies
		}
	}
	if !strings.HasPrefix(apiVersion, group) || !slices.Contains(kinds, kind) {
		return nil, ""
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, "" // the document has a key that is not a string
	}
	// decoded JSON, so that a copy made by encoding and decoding has the same Go types
	var plain map[string]any
	if json.NewDecoder(bytes.NewReader(text)).Decode(&plain) != nil {
		return nil, ""
	}
	return plain, string(text)
}
