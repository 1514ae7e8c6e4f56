package prometheus_test

import (
	"iter"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// reasons state where published dashboards differ from what Outrider exports.
type reasons struct {
	Edits []struct{ From, To, Reason string } // changes of expressions, as a user would make them
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

// apply edits a query and returns the reason why it has no data, if any.
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

// all yields the patterns.
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
