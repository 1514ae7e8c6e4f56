package discovery_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
)

// TestConformance configures one real Envoy of each kind with the YAML of all cases in
// testdata/conformance, and sends their requests. testdata/conformance/README describes the format
// of a case.
func TestConformance(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	s := newSuite(t)
	for _, kind := range []string{"sidecar", "router"} {
		directory := t.TempDir()
		cases := s.cases(t, kind)
		for _, c := range cases {
			write(t, filepath.Join(directory, c.name+".yaml"), c.mesh)
		}
		server, changes := start(t, discovery.Options{Files: []string{directory},
			Namespace: "shop"})
		e := startEnvoy(t, kind, server)
		e.listens(t)
		eventually(t, "expected problems are reported", func() (bool, string) {
			missing := missing(cases, server.Problems())
			return missing == "", missing
		})
		for _, p := range server.Problems() {
			if name := strings.TrimSuffix(filepath.Base(p.File),
				".yaml"); p.Severity != condition.Info && !findCase(cases, name).expects(p) {
				t.Errorf("unexpected problem: %s", p)
			}
		}
		if changes, problems := compared(t, server, nodeOf(t, kind), directory); len(
			changes) > 0 {
			t.Errorf("the same files would change %q; problems: %q", changes, problems)
		}
		explainer := newExplainer(t, server, kind, s.variables)
		for _, c := range cases {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				c.ask(t, e, s, explainer, func(objects string) {
					file := filepath.Join(directory, c.name+".yaml")
					write(t, file, objects)
					changes <- []string{file}
				})
			})
		}
		if strings.Contains(e.String(), "deprecated") {
			t.Errorf("Envoy %s warns of something deprecated: %s", kind,
				regexp.MustCompile(`.*deprecated.*`).FindString(e.String()))
		}
	}
}
