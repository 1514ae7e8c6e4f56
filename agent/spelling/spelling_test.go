package spelling

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	candidates := []string{"warning", "critical", "VirtualService", "debounce", "id", "ip"}
	for word, want := range map[string]string{
		"wanring":                "warning",
		"virtualServices":        "VirtualService",
		"di":                     "id",
		"critters":               "",
		"x":                      "",
		"":                       "",
		strings.Repeat("id", 40): "",
	} {
		if got := NearestWord(word, candidates); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	if got := NearestWordWithin("crittcal", candidates, 0); got != "" {
		t.Errorf("%q with no edit allowed", got)
	}
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"abc", "acb", 1}, {"kitten", "sitting", 3}, {"abc", "abc", 0}} {
		if got := distance(test.a, test.b); got != test.want || distance(test.b, test.a) != test.want {
			t.Errorf("%s, %s: %d, want %d", test.a, test.b, got, test.want)
		}
	}
}
