package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/mcp"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/memory"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/scripts/parts"
)

// corpus has the cases whose answers agent/discovery tests with a real Envoy.
const corpus = "../../agent/discovery/testdata/conformance"

// group is what one proxy has: all cases of type sidecar or router, or a case of its own.
type group struct {
	name       string
	node       *corev3.Node
	meshConfig string
	objects    []corpusObject
}

// corpusObject is an object in JSON.
type corpusObject struct {
	Kind, Namespace, Name string
	text                  []byte
}

func (o corpusObject) path() string { return o.Kind + "/" + o.Namespace + "/" + o.Name }

// deliver has a source deliver the objects of a group to sink. files is a server that has them.
type deliver func(t *testing.T, g group, files *discovery.Server, sink source.Sink)

// TestConformance_SourcesGiveTheSameResources compares the resources that the objects of all cases
// result in, from files and from the other sources: those of files have the answers of the cases.
func TestConformance_SourcesGiveTheSameResources(t *testing.T) {
	sources := map[string]deliver{"memory": fromMemory, "mcp": fromXDS}
	for _, g := range groups(t) {
		t.Run(g.name, func(t *testing.T) {
			directory := t.TempDir()
			mesh := filepath.Join(directory, "mesh")
			if err := os.Mkdir(mesh, 0o700); err != nil {
				t.Fatal(err)
			}
			for i, o := range g.objects {
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
				options.Sources = []string{name}
				server := runServer(t, options)
				deliver(t, g, files, server.Accept)
				parts.EventuallySees(t, time.Minute, name+" has the resources of files",
					func() (bool, string) {
						got := resourcesOf(t, server, g.node)
						if name == "mcp" { // it has no status, which says that the entries are well
							maps.DeleteFunc(got, unhealthy)
							maps.DeleteFunc(want, unhealthy)
						}
						difference := differences(want, got)
						return difference == "", difference
					})
			}
		})
	}
}

// unhealthy reports whether a resource depends on the status of WorkloadEntries.
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

// resourcesOf returns the resources of a proxy, by type and name.
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
			for name, r := range snapshot.Set(typeURL) {
				all[typeURL+" "+name] = r.Value()
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

// fromMemory writes the objects to the write API. Invalid ones are refused there.
func fromMemory(t *testing.T, g group, _ *discovery.Server, sink source.Sink) {
	token := filepath.Join(t.TempDir(), "token")
	write(t, token, "secret")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	one := memory.New(&config.Source{Name: "memory", Listen: address, TokenFile: token}, false, sink,
		slog.New(slog.DiscardHandler))
	runUntilEnd(t, one.Run)
	for _, o := range g.objects {
		url := "http://" + address + "/objects/" + o.Kind + "/" + o.Namespace + "/" + o.Name
		parts.EventuallySees(t, time.Minute, "the answer to "+url, func() (bool, string) {
			status, body := ask("PUT", url, "secret", string(o.text))
			return status == http.StatusNoContent || status == http.StatusUnprocessableEntity, body
		})
	}
}

// fromXDS connects to a server that has the objects.
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

// groups reads the corpus.
func groups(t *testing.T) (all []group) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(corpus, "*", "*.txtar"))
	if err != nil || len(files) < 100 {
		t.Fatalf("%d cases: %v", len(files), err)
	}
	variables := corpusVariables(t)
	byName := map[string]*group{}
	for i, file := range files {
		folder := filepath.Base(filepath.Dir(file))
		name := folder
		if folder != "sidecar" && folder != "router" {
			name += "/" + strings.TrimSuffix(filepath.Base(file), ".txtar")
		}
		g := byName[name]
		if g == nil {
			g = &group{name: name, node: nodeOf(t, folder, filepath.Base(file))}
			byName[name] = g
		}
		variables["PORT"], variables["OTHER"] = strconv.Itoa(20000+2*i), strconv.Itoa(20001+2*i)
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range txtar.Parse(content).Files {
			text := os.Expand(string(f.Data), func(name string) string { return variables[name] })
			switch f.Name {
			case "mesh.yaml":
				g.objects = append(g.objects, objectsOf(t, file, text)...)
			case "meshconfig.yaml":
				g.meshConfig = text
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		slices.SortFunc(byName[name].objects, func(a, b corpusObject) int { // as sources do
			return strings.Compare(a.path(), b.path())
		})
		all = append(all, *byName[name])
	}
	return all
}

// corpusVariables returns the variables of cases: ports of nobody, and a certificate with its key.
func corpusVariables(t *testing.T) map[string]string {
	t.Helper()
	variables := map[string]string{"HASH": strings.Repeat("0a", 32), "SPKI": strings.Repeat("A", 43) +
		"=", "SOCKET": "/run/socket"}
	for i, name := range []string{"A", "B", "C", "BAD", "SLOW", "TWO", "TCP", "GREET", "MUTE", "FULL",
		"TLS", "LAPSED", "CONNECT", "CLOSED", "HERE", "UNKNOWN", "FAR"} {
		variables[name] = strconv.Itoa(10000 + i)
	}
	directory := t.TempDir()
	authority := pkitest.NewAuthority(t, "root", nil)
	chain, key := authority.Issue(t, pkitest.Leaf("client.test", time.Hour))
	for name, text := range map[string]string{"CERT": string(chain), "KEY": string(key),
		"CLIENT": string(chain) + string(key), "REVOKED": string(chain) + string(key), "CRL": ""} {
		variables[name] = filepath.Join(directory, name)
		write(t, variables[name], text)
	}
	return variables
}

// objectsOf returns the objects of a text. Those without a namespace get that of the proxy.
func objectsOf(t *testing.T, file, text string) (all []corpusObject) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for {
		var tree map[string]any
		err := decoder.Decode(&tree)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		metadata, ok := tree["metadata"].(map[string]any)
		if !ok {
			continue
		}
		if metadata["namespace"] == nil {
			metadata["namespace"] = "shop"
		}
		var o corpusObject
		if o.text, err = json.Marshal(tree); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		o.Kind, _ = tree["kind"].(string)
		o.Namespace, _ = metadata["namespace"].(string)
		o.Name, _ = metadata["name"].(string)
		all = append(all, o)
	}
}

// nodeOf returns the node of the proxy of a case.
func nodeOf(t *testing.T, folder, name string) *corev3.Node {
	t.Helper()
	kind, address, mode := "sidecar", "127.0.0.1", "NONE"
	switch {
	case folder == "router", folder == "alone" && strings.HasPrefix(name, "router-"):
		kind = "router"
	case folder == "captured":
		address, mode = "10.8.0.1", "REDIRECT"
		if strings.HasPrefix(name, "tproxy") {
			mode = "TPROXY"
		}
	}
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "STAGE": "test",
		"ISTIO_VERSION": "1.30.2", "CLUSTER_ID": "Kubernetes", "INTERCEPTION_MODE": mode,
		"LABELS": map[string]any{"app": "edge"}})
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: kind + "~" + address + "~vm.shop~shop.svc.cluster.local",
		Cluster: "test", Metadata: metadata, Locality: &corev3.Locality{Region: "eu", Zone: "a"}}
}
