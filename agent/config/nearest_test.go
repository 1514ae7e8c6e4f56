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
