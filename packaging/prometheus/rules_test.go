package prometheus_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/scripts/parts"
)

func TestRules_Promtool(t *testing.T) {
	t.Parallel()
	for tests, e := range map[string]example{"rules.yml": ofAgent,
		"discoveryd-rules.yml": ofDiscoveryd} {
		promtool(t, ".", "check", "rules", e.rules)
		promtool(t, ".", "check", "config", e.configuration(t))
		promtool(t, "testdata", "test", "rules", tests)
		tested, err := os.ReadFile(filepath.Join("testdata", tests))
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`alertname(?:: |=")(\w+)`).FindAllStringSubmatch(string(tested), -1)
		for _, rule := range e.alerts(t) {
			if !slices.ContainsFunc(named, func(n []string) bool { return n[1] == rule.Alert }) {
				t.Errorf("testdata/%s does not test %s", tests, rule.Alert)
			}
		}
	}
}

type rule struct{ Alert, Expr string }

func (e example) alerts(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile(e.rules)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Groups[0].Rules
}

// checkMetrics fails the test for each metric in the example's alerts that Prometheus has not
// scraped.
func checkMetrics(t *testing.T, p server, e example) {
	t.Helper()
	metric := regexp.MustCompile(`\b((?:outrider|envoy)_[a-z_]+)(?:[{\[ )]|$)`)
	for _, rule := range e.alerts(t) {
		for _, found := range metric.FindAllStringSubmatch(rule.Expr, -1) {
			parts.Eventually(t, time.Minute, "there is "+found[1], func() bool {
				samples, err := p.query(found[1])
				return err == nil && samples > 0
			})
		}
	}
}
