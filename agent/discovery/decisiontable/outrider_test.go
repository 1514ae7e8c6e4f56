package decisiontable

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// startOutrider runs embedded servers until the test ends. Each case has a server of its own,
// because an embedded server has one mesh only.
func startOutrider(t testing.TB, cases []*testCase, providers *authorizers) source {
	t.Helper()
	folder := t.TempDir()
	common := filepath.Join(folder, "common.yaml")
	write(t, common, textOf(providers.services(t)))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	feeds, places := map[string]*resource.Feed{}, map[string]map[string]resource.Origin{}
	for _, c := range cases {
		meshConfig := filepath.Join(t.TempDir(), "mesh.yaml")
		write(t, meshConfig, providers.meshConfig()+fmt.Sprintf("defaultConfig: "+
			"{gatewayTopology: {numTrustedProxies: %d}}\n", c.trustedProxies))
		file := filepath.Join(folder, c.name+".yaml")
		write(t, file, c.text())
		places[c.name] = placesOf(t, file, c.text())
		server, err := discovery.New(discovery.Options{Files: []string{common, file},
			Namespace: c.name, KeySetRefresh: keySetRefresh,
			Settings: discovery.Settings{MeshConfigFile: meshConfig}})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = server.Run(ctx) })
		<-server.Ready()
		for _, p := range server.Problems() {
			if p.Severity == "error" {
				t.Errorf("%s: %s: %s: %s\n%s", c.name, p.Object, p.Field, p.Message, c.text())
			}
		}
		if feeds[c.name], err = server.Feed(c.node("127.0.0.1")); err != nil {
			t.Fatal(err)
		}
	}
	return func(c *testCase) *workload {
		snapshot, _ := feeds[c.name].Current()
		return &workload{snapshot: snapshot, places: places[c.name]}
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
