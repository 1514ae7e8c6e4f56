package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
)

// TestPatches_ReportsIdleOnes: patches of EnvoyFilters that match no resource are reported until
// one matches.
func TestPatches_ReportsIdleOnes(t *testing.T) {
	directory := t.TempDir()
	write(t, filepath.Join(directory, "patch.yaml"), `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: idle, namespace: shop}
spec:
  configPatches:
  - {applyTo: CLUSTER, match: {cluster: {service: web.test}}, patch: {operation: MERGE, value: {connect_timeout: 1s}}}
  - {applyTo: CLUSTER, match: {context: GATEWAY}, patch: {operation: REMOVE}}
  - {applyTo: CLUSTER, match: {proxy: {proxyVersion: ".*"}}, patch: {operation: REMOVE}}
`)
	server, changes := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
	feedOf(t, server, "sidecar")
	reported := func() string {
		var all []string
		for _, p := range server.Problems() {
			all = append(all, fmt.Sprintf("%s %s: %s", p.Severity, p.Field, p.Message))
		}
		return strings.Join(all, "\n")
	}
	version := "warning spec.configPatches[2]: matches a version of Istio's proxy, but this " +
		"proxy has none: no effect"
	if got, want := reported(),
		"info spec.configPatches[0]: matches nothing of this proxy, and so does nothing\n"+version; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	path := filepath.Join(directory, "web.yaml")
	write(t, path, fmt.Sprintf(webEntry, "web", "10.0.0.1"))
	changes <- []string{path}
	changes <- nil // the server receives this once it has processed the previous change
	if got := reported(); got != version {
		t.Errorf("got\n%s\nwant\n%s", got, version)
	}
}
