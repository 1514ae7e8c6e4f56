package prometheus_test

import (
	"iter"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// reasons describes where published dashboards differ from the metrics that Outrider exports:
// expressions to change, and expressions without data.
type reasons struct {
	// replacements in expressions, which users of the dashboard must make as well
	Edits []struct{ From, To, Reason string }
	None  []struct{ Expression, Reason string }
}

func readReasons(t *testing.T, name string) *reasons {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	r := &reasons{}
	if err := yaml.Unmarshal(text, r); err != nil {
		t.Fatal(err)
	}
	return r
}

// apply changes a query by Edits, and returns the reason why it has no data, "" if it must have
// data. It adds the entries that match the query to used.
func (r *reasons) apply(q *query, used map[string]bool) string {
	for _, edit := range r.Edits {
		if strings.Contains(q.expression, edit.From) {
			used[edit.From] = true
			q.expression = strings.ReplaceAll(q.expression, edit.From, edit.To)
		}
	}
	for _, none := range r.None {
		if regexp.MustCompile(none.Expression).MatchString(q.expression) {
			used[none.Expression] = true
			return none.Reason
		}
	}
	return ""
}

// all yields the patterns of all entries.
func (r *reasons) all() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, edit := range r.Edits {
			if !yield(edit.From) {
				return
			}
		}
		for _, none := range r.None {
			if !yield(none.Expression) {
				return
			}
		}
	}
}
