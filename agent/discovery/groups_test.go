package discovery_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
)

const workloadGroup = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: shop}
spec:
  metadata: {labels: {app: web}}
  template:
    labels:
      version: v2
    serviceAccount: shop
    network: vms
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: other, namespace: shop}
spec: {template: {labels: {version: v3}}}
`

// TestWorkloadGroup_IsComparedWithTheHost compares the WorkloadGroup of the host's registration
// with its node, before and after a change of the settings.
func TestWorkloadGroup_IsComparedWithTheHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "group.yaml")
	write(t, file, workloadGroup)
	workload := discovery.Workload{Group: "web", ServiceAccount: "default",
		Labels: map[string]string{"app": "web", "version": "v1"}}
	options := discovery.Options{Files: []string{file}, Settings: discovery.Settings{
		Namespace: "shop", Workload: workload}}
	server, _ := start(t, options)
	found := func() []string {
		var found []string
		for _, p := range server.Problems() {
			if strings.Contains(p.Message, "registers with the group") {
				found = append(found, p.String())
			}
		}
		return found
	}
	if got := found(); len(got) != 3 || !slices.ContainsFunc(got, func(text string) bool {
		return strings.HasPrefix(text, file+":1: ") &&
			strings.Contains(text, `its [node] labels "version" is "v1", not "v2"`)
	}) || !strings.Contains(strings.Join(got, " "), `service_account is "default", not "shop"`) ||
		!strings.Contains(strings.Join(got, " "), `network is "", not "vms"`) {
		t.Errorf("problems %q", got)
	}
	options.Settings.Workload = discovery.Workload{Group: "web", ServiceAccount: "shop",
		Network: "vms", Labels: map[string]string{"app": "web", "version": "v2", "more": "x"}}
	if err := server.Configure(options.Settings); err != nil {
		t.Fatal(err)
	}
	if got := found(); len(got) > 0 {
		t.Errorf("a node like the group has the problems %q", got)
	}
}
