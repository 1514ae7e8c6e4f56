package discovery_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
)

// TestAlone runs each case in testdata/conformance/alone with an Envoy of its own, because these
// cases configure the whole proxy.
func TestAlone(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	s := newSuite(t)
	for _, c := range s.cases(t, "alone") {
		t.Run(c.name, func(t *testing.T) { alone(t, c, s) })
	}
}

// alone runs a case with an Envoy of its own.
func alone(t *testing.T, c *conformanceCase, s *suite) {
	directory := t.TempDir()
	file := filepath.Join(directory, c.name+".yaml")
	write(t, file, c.mesh)
	options := discovery.Options{Files: []string{file}, Namespace: "shop",
		SeparateViewsByAddress: true}
	if c.meshConfig != "" {
		options.Settings.MeshConfigFile = filepath.Join(directory, "mesh")
		write(t, options.Settings.MeshConfigFile, c.meshConfig)
	}
	server, changes := start(t, options)
	e := startEnvoy(t, c.node, server)
	e.listens(t)
	for _, p := range server.Problems() {
		if p.Severity != condition.Info && !c.expects(p) {
			t.Errorf("unexpected problem: %s", p)
		}
	}
	c.ask(t, e, s, newExplainer(t, server, c.node, s.variables), func(objects string) {
		write(t, file, objects)
		changes <- []string{file}
	})
}

// TestSidecar_HiddenServicesAreNotSent changes services that are not visible to a proxy, and one
// that is. Only the latter changes the proxy's resources.
func TestSidecar_HiddenServicesAreNotSent(t *testing.T) {
	directory := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(directory, name+".yaml")
		write(t, path, text)
		return path
	}
	put("web", fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	put("other", fmt.Sprintf(webEntry, "other", "10.0.0.1"))
	put("sidecar",
		"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: "+
			"shop}\nspec: {egress: [{hosts: ['./web.test']}]}\n")
	server, changes := start(t, discovery.Options{Files: []string{directory}})
	feed := feedOf(t, server, "sidecar")
	for _, test := range []struct {
		name string
		want bool
	}{{"other", false}, {"new", false}, {"web", true}} {
		before, _ := feed.Current()
		changes <- []string{put(test.name, fmt.Sprintf(webEntry, test.name, "10.0.0.2"))}
		changes <- nil // the server receives this once it has processed the previous change
		if keys, ok := feed.ChangedSince(before.Sequence); !ok || (len(keys) > 0) != test.want {
			t.Errorf("a change of %s sends %v", test.name, keys)
		}
	}
}
