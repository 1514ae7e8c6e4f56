package journal

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/scripts/parts"
)

// The catalogue contains exactly the message IDs of this package, and systemd can read it.
func TestCatalog(t *testing.T) {
	path := filepath.Join(parts.RepositoryRoot(), "packaging", "catalog", "outrider.catalog")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, match := range regexp.MustCompile(`(?m)^-- ([0-9a-f]{32})$`).FindAllStringSubmatch(
		string(text), -1) {
		found = append(found, match[1])
	}
	ids := []string{MessageIDEpochStarted, MessageIDEpochLive, MessageIDEpochExited,
		MessageIDReloadRefused, MessageIDDraining,
		MessageIDSecretRotated, MessageIDRestartsExhausted}
	slices.Sort(found)
	slices.Sort(ids)
	if diff := cmp.Diff(ids, found); diff != "" {
		t.Errorf("constants and catalogue differ (-constants +catalogue):\n%s", diff)
	}

	root := t.TempDir()
	folder := filepath.Join(root, "usr/lib/systemd/catalog")
	for _, dir := range []string{folder, filepath.Join(root, "var/lib/systemd/catalog")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "outrider.catalog"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("journalctl", "--root", root,
		"--update-catalog").CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("journalctl --update-catalog: %v: %s", err, out)
	}
	listed, err := exec.Command("journalctl", "--root", root, "--dump-catalog").CombinedOutput()
	if err != nil {
		t.Fatalf("journalctl --dump-catalog: %v: %s", err, listed)
	}
	for _, id := range ids {
		_, explained, _ := strings.Cut(string(listed), "-- "+id+"\n")
		if !strings.HasPrefix(explained, "Subject: ") {
			t.Errorf("%s is not in the catalogue: %.200s", id, explained)
		}
	}
}
