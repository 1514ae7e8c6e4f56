package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/scripts/parts"
)

// corpusKinds matches names of corpora with supported kinds.
var corpusKinds = regexp.MustCompile(`(?i)(DestinationRule|EnvoyFilter|Gateway|ServiceEntry|Sidecar|VirtualService|WorkloadEntry|WorkloadGroup)(-valid|-invalid)?\.yaml$`)

// TestCorpora compares validation with Istio's examples of valid and invalid objects, and with
// Outrider's own (testdata/corpora), in which each invalid object begins with the expected problem.
func TestCorpora(t *testing.T) {
	istio, err := parts.IstioSourceDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{filepath.Join(istio, "pkg/test/datasets/validation/dataset"),
		filepath.Join(istio, "pkg/config/validation/testdata/crds"),
		filepath.Join("testdata", "corpora")} {
		files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no corpora in %s: %v", folder, err)
		}
		for _, file := range files {
			if !corpusKinds.MatchString(file) {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i, document := range regexp.MustCompile(`(?m)^---.*\n`).Split(string(text), -1) {
				if strings.TrimSpace(document) != "" {
					t.Run(fmt.Sprintf("%s/%d", filepath.Base(file), i), func(t *testing.T) {
						corpus(t, document, strings.Contains(file, "-invalid."),
							folder == filepath.Join("testdata", "corpora"))
					})
				}
			}
		}
	}
}

var expectation = regexp.MustCompile(`(?m)^(_err|# want): ?(.*)\n`)

// corpus checks one document. An invalid document of Outrider's own corpora (ours) must have the
// expected problem.
func corpus(t *testing.T, document string, invalid, ours bool) {
	t.Helper()
	wanted := ""
	if match := expectation.FindStringSubmatch(document); match != nil {
		wanted, invalid = match[2], true
	}
	path := filepath.Join(t.TempDir(), "object.yaml")
	if err := os.WriteFile(path, []byte(expectation.ReplaceAllString(document, "")),
		0o600); err != nil {
		t.Fatal(err)
	}
	problems, err := discovery.Check([]string{path}, discovery.CheckOptions{})
	if err != nil {
		t.Fatal(err)
	}
	refused, reported := false, false
	for _, p := range problems {
		if p.Severity == condition.Error {
			refused = true
			reported = reported || strings.Contains(p.String(), wanted)
		}
	}
	if refused != invalid {
		t.Errorf("refused: %v, must be: %v (%s); problems %v\n%s", refused, invalid, wanted,
			problems, document)
	}
	if ours && invalid && !reported {
		t.Errorf("no error tells %q: %v\n%s", wanted, problems, document)
	}
}
