package prometheus_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"outrider.org/outrider/scripts/parts"
)

// panel is a panel of a Grafana dashboard, or a row with panels.
type panel struct {
	Title   string
	Panels  []panel
	Rows    []panel
	Targets []struct{ Expr string }
}

// query is one query of a panel.
type query struct{ dashboard, panel, expression string }

func queries(t *testing.T, dashboard string, text []byte) []query {
	t.Helper()
	var root panel
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatalf("%s: %v", dashboard, err)
	}
	var all []query
	var walk func(panel)
	walk = func(p panel) {
		for _, target := range p.Targets {
			if target.Expr != "" {
				all = append(all, query{dashboard, p.Title, target.Expr})
			}
		}
		for _, inner := range append(p.Panels, p.Rows...) {
			walk(inner)
		}
	}
	walk(root)
	if len(all) == 0 {
		t.Fatalf("%s has no queries", dashboard)
	}
	return all
}

// variable matches Grafana's variables.
var variable = regexp.MustCompile(`\$\{?\w+\}?`)

// fill replaces variables in an expression as Grafana does if "All" is selected for the dashboard's
// own variables.
func fill(expression string) string {
	return variable.ReplaceAllStringFunc(expression, func(name string) string {
		if strings.Contains(name, "__rate_interval") {
			return "5m"
		}
		return ".*"
	})
}

func TestDashboards_HaveData(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	p := ofAgent.prometheus(t, "outrider", 15020, s.Ports.Status)
	text, err := os.ReadFile("../grafana/outrider.json")
	if err != nil {
		t.Fatal(err)
	}
	checkPanels(t, p, "published.yaml", published(t), queries(t, "outrider.json", text),
		func() { s.exercise(t) })
	checkMetrics(t, p, ofAgent)
}

// checkPanels checks that the queries in all have data in Prometheus. The queries in others, from
// published dashboards, may have no data if file in testdata states the reason.
func checkPanels(t *testing.T, p server, file string, others, all []query, exercise func()) {
	t.Helper()
	without := map[query]string{} // reasons of queries without data
	used := map[string]bool{}
	known := readReasons(t, file)
	for _, q := range others {
		reason := known.apply(&q, used)
		if reason != "" {
			without[q] = reason
		}
		all = append(all, q)
	}
	for line := range known.all() {
		if !used[line] {
			t.Errorf("testdata/%s: nothing matches %s", file, line)
		}
	}
	t.Logf("%d queries, %d of them without data by reason", len(all), len(without))
	expected := slices.DeleteFunc(all, func(q query) bool { return without[q] != "" })
	awaitData(t, p, expected, exercise)
	for q, reason := range without {
		if found, err := p.query(fill(q.expression)); err != nil || found > 0 {
			t.Errorf("%s, %s: %s: %d samples, %v, though %s", q.dashboard, q.panel, q.expression,
				found, err, reason)
		}
	}
}

// published returns the queries of the published dashboards that scripts/get-dashboards downloads.
func published(t *testing.T) []query {
	t.Helper()
	folders := script(t, "get-dashboards")
	paths, err := filepath.Glob(filepath.Join(folders[0],
		"charts/gateway-addons-helm/dashboards/*.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []query
	for _, path := range paths {
		if name := filepath.Base(path); !strings.HasPrefix(name, "jsonnetfile") {
			text, err := os.ReadFile(path) //nolint:gosec // of a module
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, queries(t, "gateway/"+name, text)...)
		}
	}
	text, err := os.ReadFile(filepath.Join(folders[1], "examples/grafana/dashboards.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	for {
		var document struct{ Data map[string]string }
		if decoder.Decode(&document) != nil {
			break
		}
		for name, dashboard := range document.Data {
			if strings.HasSuffix(name, ".json") {
				all = append(all, queries(t, "contour/"+name, []byte(dashboard))...)
			}
		}
	}
	return all
}

// awaitData calls exercise repeatedly until all queries have data.
func awaitData(t *testing.T, p server, all []query, exercise func()) {
	t.Helper()
	// rate() needs two scrapes of an existing counter, so the traffic must continue.
	var exercised time.Time
	parts.Poll(5*time.Minute, func() bool {
		all = slices.DeleteFunc(all, func(q query) bool {
			// send requests between the queries, too: on a slow machine, a pass over all queries
			// takes long
			if time.Since(exercised) > time.Second {
				exercise()
				exercised = time.Now()
			}
			found, err := p.query(fill(q.expression))
			if err != nil {
				t.Fatalf("%s, %s: %s: %v", q.dashboard, q.panel, q.expression, err)
			}
			return found > 0
		})
		return len(all) == 0
	})
	for _, q := range all {
		t.Errorf("%s, %s: no data for %s", q.dashboard, q.panel, q.expression)
	}
}
