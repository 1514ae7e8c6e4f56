package store

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"
)

// TestParseJSON_TreeOfTheYAMLParser compares the trees of JSON texts with those of the YAML parser.
// For other texts there is no tree.
func TestParseJSON_TreeOfTheYAMLParser(t *testing.T) {
	for _, text := range []string{
		`{"kind": "ServiceEntry", "spec": {"hosts": ["a.test", "b.test"], "none": [], "empty": {}}}`,
		"{\n\t\"text\": \"a\\n\\\"\\u00e9 é\", \"true\": true, \"no\": false, \"null\": null}\n",
		`[0, -1, 1.5, 1e3, 1E-3, 18446744073709551616, "017", "<<", ""]`,
		`{"twice": 1, "twice": 2, "<<": {"a": 1}}`, `null`, `"text"`, `3`,
	} {
		var want yaml.Node
		if err := yaml.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Content[0], parseJSON([]byte(text)),
			cmpopts.IgnoreFields(yaml.Node{}, "Line", "Column", "Tag")); diff != "" {
			t.Errorf("%s (-YAML +JSON):\n%s", text, diff)
		}
	}
	for _, text := range []string{"", "kind: ServiceEntry", "{a: b}", `{"a": 1,}`, `{"a": 1} {}`,
		`{"a": 1`, "{\"a\": \"\xff\"}", strings.Repeat("[", 1<<20),
		strings.Repeat("[", maxDepth+2) + strings.Repeat("]", maxDepth+2)} {
		if node := parseJSON([]byte(text)); node != nil {
			t.Errorf("%.20q is JSON: %v", text, node)
		}
	}
}
