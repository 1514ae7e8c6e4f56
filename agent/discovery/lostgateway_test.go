package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
)

// TestExplain_NamesGatewayThatDoesNotExist explains requests for the host of a VirtualService that
// misspells the name of its Gateway. The explanation names both, and the problem of another file,
// which is not valid YAML and might contain the Gateway.
func TestExplain_NamesGatewayThatDoesNotExist(t *testing.T) {
	folder := t.TempDir()
	write(t, filepath.Join(folder, "edge.yaml"), fmt.Sprintf(edgeGateway, "edge", "")+
		fmt.Sprintf(edgeRoutes, "web", "web.test", "egde", "[{directResponse: {status: 200}}]"))
	write(t, filepath.Join(folder, "torn.yaml"), "kind: [")
	for host, want := range map[string]string{
		"web.test": "VirtualService default/web at " + folder + "/edge.yaml:8 has the host, and " +
			"there is no Gateway default/egde",
		"other.test": "",
	} {
		said, err := discovery.Explain([]string{folder}, discovery.CheckOptions{NodeType: "router"},
			explain.Request{Host: host, Port: 8080})
		must(t, err)
		if said.Status != 404 || !strings.HasSuffix(said.Reason, want) ||
			(want == "") == strings.Contains(said.Fix, "correct its name") {
			t.Errorf("%s: %s", host, described(said))
		}
		if len(said.Problems) != 1 || filepath.Base(said.Problems[0].File) != "torn.yaml" {
			t.Errorf("%s: problems %v", host, said.Problems)
		}
	}
}
