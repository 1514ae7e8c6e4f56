package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/mcp"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/memory"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/scripts/parts"
)

// registryName is the name of the second source of each server in a comparison.
const registryName = "registry"

// deliver is a function that makes a source of some type deliver the objects of a group to sink.
// files is a discovery server that has read these objects from files.
type deliver func(t *testing.T, g group, files *discovery.Server, sink source.Sink)

// TestConformance_SourcesGiveTheSameResources shows that a proxy gets the same resources whether
// its objects come from files, from memory or over MCP. The tests of agent/discovery check the
// resources from files with Envoy. TestProgram_ServesKubernetes makes the same comparison for
// Kubernetes.
func TestConformance_SourcesGiveTheSameResources(t *testing.T) {
	compareSources(t, map[string]deliver{"memory": fromMemory, "mcp": fromXDS})
}

// compareSources compares the resources from each source with those from files, for all groups of
// the corpus.
func compareSources(t *testing.T, sources map[string]deliver) {
	for _, g := range groups(t) {
		t.Run(g.name, func(t *testing.T) { compareGroup(t, g, g.objects, sources) })
	}
}

// compareGroup compares the resources of a proxy whose objects come from each of the sources with
// the resources from the files with inFiles.
func compareGroup(t *testing.T, g group, inFiles []corpusObject, sources map[string]deliver) {
	directory := t.TempDir()
	mesh := filepath.Join(directory, "mesh")
	if err := os.Mkdir(mesh, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, o := range inFiles {
		write(t, filepath.Join(mesh, fmt.Sprintf("%03d.json", i)), string(o.text))
	}
	options := discovery.Options{EncodeObject: mcp.Encode}
	if g.meshConfig != "" {
		options.Settings.MeshConfigFile = filepath.Join(directory, "meshconfig")
		write(t, options.Settings.MeshConfigFile, g.meshConfig)
	}
	ofFiles := options
	ofFiles.Files = []string{mesh}
	files := runServer(t, ofFiles)
	want := resourcesOf(t, files, g.node)
	if len(want) == 0 {
		t.Fatal("no resources")
	}
	for name, deliver := range sources {
		options.Sources = []string{name, registryName}
		server := runServer(t, options)
		deliver(t, g, files, server.AcceptUpdate)
		parts.EventuallyWithObservation(t, time.Minute, name+" has the resources of files",
			func() (bool, string) {
				got, want := resourcesOf(t, server, g.node), maps.Clone(want)
				// MCP does not transport the status of objects. Without their status, some
				// WorkloadEntries of the corpus do not count as healthy.
				if name == "mcp" {
					maps.DeleteFunc(got, unhealthy)
					maps.DeleteFunc(want, unhealthy)
				}
				difference := differences(want, got)
				return difference == "", difference
			})
	}
}

// unhealthy reports whether a resource depends on the health in the status of WorkloadEntries.
func unhealthy(name string, _ []byte) bool {
	return strings.Contains(name, "ClusterLoadAssignment") &&
		strings.HasSuffix(name, "|chosen.workload.test")
}

// runServer runs a discovery server until the test ends.
func runServer(t *testing.T, options discovery.Options) *discovery.Server {
	t.Helper()
	server, err := discovery.New(options)
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, server.Run)
	parts.Eventually(t, time.Minute, "the server has read its objects", func() bool {
		select {
		case <-server.Ready():
			return true
		default:
			return false
		}
	})
	return server
}

func runUntilEnd(t *testing.T, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

// resourcesOf returns the resources of a proxy, encoded, by type and name.
func resourcesOf(t *testing.T, server *discovery.Server, node *corev3.Node) map[string][]byte {
	t.Helper()
	feed, err := server.Feed(node)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string][]byte
	parts.Eventually(t, time.Minute, "the resources of a proxy", func() bool {
		snapshot, _ := feed.Current()
		all = map[string][]byte{}
		for _, typeURL := range snapshot.Types() {
			for name, r := range snapshot.ByType(typeURL) {
				all[typeURL+" "+name] = r.EncodedMessage()
			}
		}
		return snapshot.Sequence > 0
	})
	return all
}

// differences returns the names of resources that differ.
func differences(want, got map[string][]byte) string {
	var names []string
	for name, value := range want {
		if other, ok := got[name]; !ok {
			names = append(names, "- "+name)
		} else if !bytes.Equal(value, other) {
			names = append(names, "≠ "+name)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			names = append(names, "+ "+name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, "\n")
}

// fromMemory delivers the objects through the write API of the source memory, which refuses invalid
// objects.
func fromMemory(t *testing.T, g group, _ *discovery.Server, sink source.Sink) {
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "secret")
	address := fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))
	one := memory.New(&config.Source{Name: "memory", Listen: address, TokenFile: token}, false, sink,
		slog.New(slog.DiscardHandler))
	runUntilEnd(t, one.Run)
	for _, o := range g.objects {
		url := "http://" + address + "/objects/" + o.Kind + "/" + o.Namespace + "/" + o.Name
		parts.EventuallyWithObservation(t, time.Minute, "the answer to "+url, func() (bool, string) {
			status, body := ask("PUT", url, "secret", string(o.text))
			return status == http.StatusNoContent || status == http.StatusUnprocessableEntity, body
		})
	}
}

// fromXDS delivers the objects of a discovery server over MCP; files is that server.
func fromXDS(t *testing.T, _ group, files *discovery.Server, sink source.Sink) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	streams, err := xds.NewServer(xds.Options{Source: files})
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, func(ctx context.Context) error { return streams.Serve(ctx, listener) })
	one, err := mcp.New(mcp.Options{Name: "mcp", Address: listener.Addr().String(), Plaintext: true,
		Sink: sink, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, one.Run)
}
