package discovery_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden translates the mesh.yaml and, if there is one, meshconfig.yaml of each case, and
// compares all resources as JSON with those in the case. The first line of a case has the type of
// the proxy, and "identity" if the proxy has a certificate of the mesh.
func TestGolden(t *testing.T) {
	eachGolden(t, func(t *testing.T, path string, archive *txtar.Archive) {
		c := goldenConfiguration(archive)
		server := c.serve(t)
		for _, p := range server.Problems() {
			if p.Severity != condition.Info && !strings.Contains(p.Message, "old form") {
				t.Error(p)
			}
		}
		given := 1
		if c.meshConfig != "" {
			given = 2
		}
		got := &txtar.Archive{Comment: archive.Comment, Files: archive.Files[:given:given]}
		got.Files = append(got.Files, readable(t, feedOf(t, server, c.kind))...)
		if *update {
			if err := os.WriteFile(path, txtar.Format(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(string(txtar.Format(archive)),
			string(txtar.Format(got))); diff != "" && !*update {
			t.Errorf("-want +got (go test -update rewrites it):\n%s", diff)
		}
	})
}

// eachGolden runs a test for each golden case.
func eachGolden(t *testing.T, test func(t *testing.T, path string, archive *txtar.Archive)) {
	t.Helper()
	cases, err := filepath.Glob("testdata/golden/*.txtar")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			test(t, path, archive)
		})
	}
}

// configuration is a mesh configuration for a kind of proxy (see feedOf).
type configuration struct {
	name, kind       string
	mesh, meshConfig string
}

func goldenConfiguration(archive *txtar.Archive) configuration {
	line, _, _ := strings.Cut(string(archive.Comment), "\n")
	return configuration{kind: line,
		mesh: string(archive.Files[0].Data), meshConfig: fileOf(archive, "meshconfig.yaml")}
}

// serve starts a server with the configuration.
func (c configuration) serve(t *testing.T) *discovery.Server {
	t.Helper()
	directory := t.TempDir()
	write(t, filepath.Join(directory, "mesh.yaml"), c.mesh)
	settings := discovery.Settings{AccessLog: discovery.AccessLog{File: "/dev/stdout"}}
	if c.meshConfig != "" {
		settings.MeshConfigFile = filepath.Join(t.TempDir(), "mesh")
		write(t, settings.MeshConfigFile, c.meshConfig)
	}
	server, _ := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop",
		SystemRoots: "/etc/ssl/certs/ca-certificates.crt", Settings: settings})
	return server
}

// readable returns the resources of a feed as JSON, by type and name.
func readable(t *testing.T, feed *resource.Feed) []txtar.File {
	t.Helper()
	var files []txtar.File
	snapshot, _ := feed.Current()
	for _, typeURL := range snapshot.Types() {
		for name, r := range snapshot.ByType(typeURL) {
			var packed anypb.Any
			if err := proto.Unmarshal(r.EncodedAny(), &packed); err != nil {
				t.Fatal(err)
			}
			message, err := packed.UnmarshalNew()
			if err != nil {
				t.Fatal(err)
			}
			encoded, err := protojson.Marshal(message)
			if err != nil {
				t.Fatal(err)
			}
			var plain any
			if err := json.Unmarshal(encoded, &plain); err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			encoder := json.NewEncoder(&text)
			encoder.SetIndent("", "  ")
			encoder.SetEscapeHTML(false)
			if err := encoder.Encode(plain); err != nil {
				t.Fatal(err)
			}
			var origins []string
			for _, o := range r.Origins {
				origins = append(origins, fmt.Sprintf("%s:%d %s", filepath.Base(o.File), o.Line,
					o.Name))
			}
			title := typeURL[strings.LastIndexByte(typeURL, '.')+1:] + " " + name
			if len(origins) > 0 {
				title += " from " + strings.Join(origins, ", ")
			}
			files = append(files, txtar.File{Name: title, Data: text.Bytes()})
		}
	}
	slices.SortFunc(files, func(a, b txtar.File) int { return strings.Compare(a.Name, b.Name) })
	return files
}
