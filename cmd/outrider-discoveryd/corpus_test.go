package main

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/rogpeppe/go-internal/txtar"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/identity/pkitest"
)

// corpus is the folder of the cases that agent/discovery tests with a real Envoy.
const corpus = "../../agent/discovery/testdata/conformance"

// group holds the test objects that one proxy receives together: those of all cases for a sidecar
// or a router, or those of a case that needs its own proxy.
type group struct {
	name       string
	node       *corev3.Node
	meshConfig string
	objects    []corpusObject
}

// corpusObject is an object of the corpus as JSON.
type corpusObject struct {
	Kind, Namespace, Name string
	text                  []byte
}

func (o corpusObject) path() string { return o.Kind + "/" + o.Namespace + "/" + o.Name }

// groups reads the corpus of test cases, and returns the groups of objects that one proxy receives
// together.
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
			text := os.Expand(string(f.Data), func(name string) string {
				value, ok := variables[name]
				// Only the mesh files are used, so variables in other files need no value.
				if !ok && strings.HasPrefix(f.Name, "mesh") {
					t.Fatalf("%s: no value for $%s", file, name)
				}
				return value
			})
			switch f.Name {
			case "mesh.yaml":
				g.objects = append(g.objects, objectsOf(t, file, text)...)
			case "meshconfig.yaml":
				g.meshConfig = text
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		// sorted in the order in which sources deliver objects
		slices.SortFunc(byName[name].objects, func(a, b corpusObject) int {
			return strings.Compare(a.path(), b.path())
		})
		all = append(all, *byName[name])
	}
	return all
}

// corpusVariables returns the values of the variables in the cases: ports, paths and certificates.
func corpusVariables(t *testing.T) map[string]string {
	t.Helper()
	variables := map[string]string{"HASH": strings.Repeat("0a", 32), "SPKI": strings.Repeat("A", 43) +
		"=", "SOCKET": "/run/socket"}
	for i, name := range []string{"A", "B", "C", "BAD", "SLOW", "TWO", "TCP", "GREET", "MUTE", "FULL",
		"TLS", "LAPSED", "CONNECT", "CLOSED", "HERE", "UNKNOWN", "FAR", "NAMED", "NAMEDTLS"} {
		variables[name] = strconv.Itoa(10000 + i)
	}
	directory := t.TempDir()
	authority := pkitest.NewAuthority(t, "root", nil)
	chain, key := authority.Issue(t, pkitest.LeafTemplate("client.test", time.Hour))
	for name, text := range map[string]string{"CERT": string(chain), "KEY": string(key),
		"CLIENT": string(chain) + string(key), "REVOKED": string(chain) + string(key), "CRL": ""} {
		variables[name] = filepath.Join(directory, name)
		write(t, variables[name], text)
	}
	return variables
}

// objectsOf parses the objects in a YAML text. Objects without a namespace get that of the proxy.
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
