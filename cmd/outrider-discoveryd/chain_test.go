package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/cmd/outrider-discoveryd/internal/mcp"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/catalog"
)

// TestProgram_ServesConsulThroughAnother chains two programs: the first one reads files and Consul,
// the second one reads the first one over MCP. A client of the second one receives the objects of
// the files and the changes in Consul.
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

	objects, services := &sourcetest.Receiver{}, &sourcetest.Receiver{}
	for _, one := range []*sourcetest.Receiver{objects, services} {
		client, err := mcp.New(mcp.Options{Name: "test", Plaintext: true,
			ServicesOnly: one == services,
			Address:      fmt.Sprintf("127.0.0.1:%d", second), Sink: one.AcceptUpdate,
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = client.Run(t.Context()) }()
	}
	parts.EventuallyWithObservation(t, time.Minute, "the objects of the first program", func() (bool, string) {
		text := objects.Text("test:ServiceEntry/shop/files")
		return strings.Contains(text, "files.test"), text
	})
	parts.Eventually(t, time.Minute, "the service of Consul", func() bool {
		return endpoints(services, "test:ServiceEntry/consul/service:web") == "10.0.0.1 "
	})
	consul.SetStatus(t, web, "critical")
	parts.Eventually(t, time.Minute, "no endpoint", func() bool {
		return endpoints(services, "test:ServiceEntry/consul/service:web") == "none"
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

// endpoints returns the addresses of a service's endpoints, "none" for a service without endpoints,
// or "" if the service does not exist.
func endpoints(services *sourcetest.Receiver, path string) string {
	in, ok := services.Input(path)
	if !ok {
		return ""
	}
	var found strings.Builder
	for _, e := range in.Objects[0].Spec.(*networking.ServiceEntry).Endpoints {
		found.WriteString(e.Address + " ")
	}
	if found.Len() == 0 {
		return "none"
	}
	return found.String()
}
