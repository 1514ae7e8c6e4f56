package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/scripts/parts"
)

func TestPlots_AreDrawnFromTheirJSONOnAGround(t *testing.T) {
	docs, drawn := filepath.Join(parts.RepositoryRoot(), "docs", "bench"), t.TempDir()
	for _, name := range []string{"epochs.json", "restart.json"} {
		text, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(drawn, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := replot(drawn); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"epochs.svg", "restart.svg"} {
		got, err := os.ReadFile(filepath.Join(drawn, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (go run ./scripts/bench -replot draws it): -docs +drawn:\n%s", name, diff)
		}
		_, shapes, _ := strings.Cut(string(got), "</style>\n")
		if !strings.HasPrefix(shapes, `<rect x=".5" y=".5" width="859"`) {
			t.Errorf("%s does not begin with a ground: %.80s", name, shapes)
		}
	}
}
