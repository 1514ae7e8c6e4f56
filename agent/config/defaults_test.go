package config

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false,
	"write etc/outrider.toml and the golden files from the definitions")

// golden compares got with a file, or with -update writes the file.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf(
			"%s is not what the code says (go test ./agent/config -update writes it); -want +got:\n%s",
			path, diff)
	}
}

func TestExampleIsWrittenFromTheDefinitions(t *testing.T) {
	golden(t, "../../etc/outrider.toml", Defaults())
}
