package config

import "testing"

func TestNearest(t *testing.T) {
	candidates := []string{"warning", "critical", "drain_duration", "debounce", "id", "ip"}
	for word, want := range map[string]string{
		"warn":           "warning",
		"wanring":        "warning",
		"drainDuration":  "drain_duration",
		"DRAIN-DURATION": "drain_duration",
		"drain_time":     "",
		"di":             "id",
		"x":              "",
		"":               "",
		"debounces":      "debounce",
	} {
		if got := nearest(word, candidates); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
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
