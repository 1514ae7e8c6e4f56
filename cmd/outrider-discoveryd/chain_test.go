package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/mcp"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/catalog"
)

// TestProgram_ServesConsulThroughAnother runs one program with files and Consul, another one with
// the first as its source and registry, and a client of the second.
func TestProgram_ServesConsulThroughAnother(t *testing.T) {
	t.Parallel()
	consul := catalog.Start(t, catalog.Options{})
	web := catalog.Instance{Service: "web", Address: "10.0.0.1", Port: 80, Status: "passing"}
	consul.Register(t, web)
	directory := parts.ShortDir(t)
	if err := os.Mkdir(filepath.Join(directory, "mesh"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(directory, "mesh", "a.yaml"), fmt.Sprintf(service, "files", 80, 80))
	first, second := parts.FreePort(t), parts.FreePort(t)
	startProgram(t, directory, "first", first, fmt.Sprintf(`[[source]]
paths = ["mesh"]
[[registry]]
type = "consul"
address = %q
`, consul.Address))
	startProgram(t, directory, "second", second, fmt.Sprintf(`[[source]]
type = "mcp"
address = "127.0.0.1:%d"
[[registry]]
type = "mcp"
address = "127.0.0.1:%d"
`, first, first))

	objects, services := &inputs{}, &inputs{}
	for _, one := range []*inputs{objects, services} {
		client, err := mcp.New(mcp.Options{Name: "test", Plaintext: true, Services: one == services,
			Address: fmt.Sprintf("127.0.0.1:%d", second), Sink: one.take,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = client.Run(t.Context()) }()
	}
	parts.EventuallySees(t, time.Minute, "the objects of the first program", func() (bool, string) {
		text := objects.text("test:ServiceEntry/shop/files")
		return strings.Contains(text, "files.test"), text
	})
	parts.Eventually(t, time.Minute, "the service of Consul", func() bool {
		return services.endpoints("test:ServiceEntry/consul/service:web") == "10.0.0.1 "
	})
	consul.SetStatus(t, web, "critical")
	parts.Eventually(t, time.Minute, "no endpoint", func() bool {
		return services.endpoints("test:ServiceEntry/consul/service:web") == "none"
	})
}

// startProgram starts outrider-discoveryd with its own configuration and state.
func startProgram(t *testing.T, directory, name string, port int, sources string) {
	t.Helper()
	file := filepath.Join(directory, name+".toml")
	write(t, file, fmt.Sprintf(`[paths]
state_dir = %q
[listen]
plaintext = "127.0.0.1:%d"
monitoring = "127.0.0.1:%d"
[push]
debounce_after = "10ms"
%s`, name, port, parts.FreePort(t), sources))
	program := exec.Command(os.Args[0], "--config", file)
	program.Env = append(os.Environ(), "OUTRIDER_DISCOVERYD=1")
	parts.StartProcess(t, program)
}

// inputs records what a source has delivered.
type inputs struct {
	mu     sync.Mutex
	byPath map[string]store.Input
}

func (i *inputs) take(b discovery.Batch) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if b.All || i.byPath == nil {
		i.byPath = map[string]store.Input{}
	}
	for _, input := range b.Inputs {
		i.byPath[input.Path] = input
	}
}

func (i *inputs) text(path string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return string(i.byPath[path].Text)
}

// endpoints returns the addresses of a service's endpoints, "none", or "" if the service does not
// exist.
func (i *inputs) endpoints(path string) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	objects := i.byPath[path].Objects
	if len(objects) == 0 {
		return ""
	}
	var found strings.Builder
	for _, e := range objects[0].Spec.(*networking.ServiceEntry).Endpoints {
		found.WriteString(e.Address + " ")
	}
	if found.Len() == 0 {
		return "none"
	}
	return found.String()
}
