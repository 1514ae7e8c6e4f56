package discovery_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// TestClosed_WithoutMeshConfig starts servers with an invalid MeshConfig, so that the root
// namespace is unknown. If there are policies, nothing is served until MeshConfig is corrected.
func TestClosed_WithoutMeshConfig(t *testing.T) {
	const policy = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: none, namespace: mesh}
spec: {}
`
	directory, port := t.TempDir(), parts.FreePort(t)
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	write(t, filepath.Join(directory, "gateway.yaml"), fmt.Sprintf(deniedGateway, "edge", port, "a"))
	options := discovery.Options{Files: []string{directory}, Namespace: "shop",
		LastGoodFile: filepath.Join(t.TempDir(),
			"last-good.json"), Conditions: condition.NewRegistry(),
		Settings: discovery.Settings{Namespace: "shop", MeshConfigFile: config}}
	put := func(root string) { write(t, config, "accessLogFile: ''\nrootNamespace: "+root+"\n") }
	listeners := func(server *discovery.Server) int {
		return len(resourcesOf(t, server, deniedProxy("edge")))
	}
	put("MESH")
	server, end := deniedRun(t, options)
	if server.ResourcesWithheldReason() != "" || listeners(server) == 0 {
		t.Errorf("without policies: %q, %d resources", server.ResourcesWithheldReason(),
			listeners(server))
	}
	end()

	write(t, filepath.Join(directory, "policy.yaml"), policy)
	server, changes := start(t, options)
	node := deniedProxy("edge")
	feed, err := server.Feed(node)
	if err != nil {
		t.Fatal(err)
	}
	if n := listeners(server); n > 0 {
		t.Errorf("%d resources are served", n)
	}
	for _, text := range []string{server.ResourcesWithheldReason(),
		options.Conditions.Conditions()[0].Sentence} {
		for _, want := range []string{config + ":2: ", "rootNamespace"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q lacks %q", text, want)
			}
		}
	}
	if c := options.Conditions.Conditions()[0]; c.Severity != condition.Error ||
		!strings.Contains(c.Sentence, "until it is corrected nothing is served") {
		t.Errorf("condition %+v", c)
	}

	put("mesh")
	changes <- []string{config}
	changes <- nil
	denied := func() bool {
		snapshot, _ := feed.Current()
		for _, r := range snapshot.ByType(resource.ListenerType) {
			return strings.Contains(string(r.EncodedMessage()), "rbac")
		}
		return false
	}
	if !denied() || server.ResourcesWithheldReason() != "" ||
		len(options.Conditions.Conditions()) > 0 {
		t.Errorf("corrected: the policy is in force: %v, closed: %q, %v", denied(),
			server.ResourcesWithheldReason(),
			options.Conditions.Conditions())
	}
	put("MESH")
	changes <- []string{config}
	changes <- nil
	want := resourcesOf(t, server, node)
	next, end := deniedRun(t, options)
	defer end()
	for what, server := range map[string]*discovery.Server{"running": server, "next": next} {
		if got := resourcesOf(t, server, node); len(got) == 0 || fmt.Sprint(got) !=
			fmt.Sprint(want) || server.ResourcesWithheldReason() != "" {
			t.Errorf("invalid again, %s: %v, closed: %q", what, got,
				server.ResourcesWithheldReason())
		}
	}
}

// TestClosed_ByNewPolicy adds a policy while no valid MeshConfig is known, and corrects MeshConfig
// later. Meanwhile proxies retain their resources; afterwards all changes take effect.
func TestClosed_ByNewPolicy(t *testing.T) {
	directory := t.TempDir()
	config, routes := filepath.Join(t.TempDir(), "mesh.yaml"), filepath.Join(directory, "a.yaml")
	policy := filepath.Join(directory, "policy.yaml")
	write(t, config, "rootNamespace: MESH\n")
	gateway := func(app string, port int) {
		write(t, routes, fmt.Sprintf(deniedGateway, "edge", port, app))
	}
	gateway("first", 8001)
	server, changes := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop",
		Settings: discovery.Settings{Namespace: "shop", MeshConfigFile: config}})
	push := func(paths ...string) {
		changes <- paths
		changes <- nil
	}
	names := func() (all []string) {
		for key := range resourcesOf(t, server, deniedProxy("edge")) {
			all = append(all, key.Name)
		}
		slices.Sort(all)
		return all
	}
	before := names()
	write(t, policy, deniedPolicies["AuthorizationPolicy"])
	push(policy)
	gateway("second", 8002)
	push(routes)
	if got := names(); !slices.Equal(got, before) || server.ResourcesWithheldReason() == "" {
		t.Errorf("%v, want %v; closed: %q", got, before, server.ResourcesWithheldReason())
	}
	write(t, config, "rootNamespace: mesh\n")
	push(config)
	if got := strings.Join(names(), " "); strings.Contains(got, "8001") ||
		!strings.Contains(got, "8002") || server.ResourcesWithheldReason() != "" {
		t.Errorf("corrected: %v, closed: %q", got, server.ResourcesWithheldReason())
	}
}

// TestClosed_WithoutRequiredSource: nothing is served until a source that may contain policies has
// delivered its complete state, which may be empty.
func TestClosed_WithoutRequiredSource(t *testing.T) {
	server, err := discovery.New(discovery.Options{Files: []string{t.TempDir()},
		Sources:         []string{"memory", "kubernetes", store.FilesSource},
		RequiredSources: []string{"memory", "kubernetes"}})
	if err != nil {
		t.Fatal(err)
	}
	server.AcceptUpdate(batch(true, "10.0.0.1"))
	runServer(t, server)
	feed := feedOf(t, server, "sidecar")
	server.AcceptUpdate(discovery.SourceUpdate{Source: "kubernetes", Inputs: []store.SourceInput{{
		Path: "kubernetes:ServiceEntry/shop/web", Text: []byte(fmt.Sprintf(webEntry, "a", "10.0.0.2"))}}})
	if n := len(versions(feed)); n > 0 ||
		!strings.Contains(server.ResourcesWithheldReason(), "kubernetes: this source has not "+
			"delivered") {
		t.Errorf("%d resources are served: %q", n, server.ResourcesWithheldReason())
	}
	server.AcceptUpdate(discovery.SourceUpdate{Source: "kubernetes", Complete: true})
	parts.EventuallyWithObservation(t, time.Minute, "served", func() (bool, string) {
		return len(versions(feed)) > 0, server.ResourcesWithheldReason()
	})
}
