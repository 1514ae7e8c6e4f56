// Package house tests the rules of the source tree: imports, linked packages, and the form of the
// code.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

const module = "outrider.org/outrider/"

// leaves are what every part may import; of the parts, each may import these and itself.
var leaves = []string{"agent/accept", "agent/admission", "agent/cloud", "agent/condition", "agent/config",
	"agent/credential", "agent/discovery/explain/answer", "agent/epoch/record",
	"agent/histogram", "agent/operator", "agent/ownership", "agent/part", "agent/probe",
	"agent/probe/execprobe", "agent/readfile", "agent/repeat", "agent/resource", "agent/sockdiag",
	"agent/spelling", "agent/typedconfig", "agent/unixpeer", "agent/watch"}

// more is what a room may import beside leaves and itself; "/..." stands for a package and all
// below it.
var more = map[string][]string{
	"agent":           {"agent/...", "bootstrap"}, // composes the parts
	"agent/driver":    {"agent/envoy", "agent/epoch", "agent/keeper"},
	"agent/epoch":     {"agent/envoy"},              // its types
	"agent/blueprint": {"agent/envoy", "bootstrap"}, // command line and bootstrap
	// types of the state; the interfaces, embedded
	"agent/bus": {"agent/api", "packaging/dbus"},
	// operations over several parts
	"agent/backend": {"agent/api", "agent/blueprint", "agent/capture",
		"agent/discovery/...", "agent/dns", "agent/driver", "agent/endpoints", "agent/envoy",
		"agent/epoch", "agent/exposure", "agent/health",
		"agent/identity", "agent/mesh",
		"agent/neighbour", "agent/relay", "agent/status", "agent/sts", "agent/systemd",
		"agent/xds"},
	"agent/relay": {"agent/identity/pki"}, // roots and tokens
	// one agent's side of the discovery server
	"agent/mesh":    {"agent/discovery/...", "agent/epoch", "agent/neighbour", "agent/xds"},
	"cmd/outriderd": {"agent"},
	// config check, mesh check, envoy, import, cleanup, example
	"cmd/outrider": {"agent/api", "agent/blueprint", "agent/capture", "agent/discovery/...",
		"agent/envoy", "agent/identity/pki", "agent/keeper", "bootstrap", "packaging/examples"},
	"cmd/outrider-keeper":     {"agent/keeper"},
	"cmd/outrider-capture":    {"agent/capture", "agent/dns/resolved"},
	"cmd/outrider-bootstrap":  {"bootstrap/...", "agent/discovery/typedcheck"},
	"cmd/outrider-probe":      {"agent/probe/execprobe"},
	"cmd/outrider-discoveryd": {"agent/xds/...", "agent/discovery/..."},
	"scripts":                 {"agent/...", "bootstrap/...", "cmd/..."},
}

// Limits.
const (
	mostLines      = 400
	mostBytes      = 31.7e6 // of outriderd, stripped
	forbiddenTexts = "t.Skip( t.SkipNow( b.Skip("
)

type goPackage struct {
	Dir, ImportPath string
	Imports, Deps   []string
	GoFiles         []string
	TestGoFiles     []string
	XTestGoFiles    []string
}

func list(t *testing.T, arguments ...string) []goPackage {
	t.Helper()
	command := exec.Command("go",
		append([]string{"list", "-json=Dir,ImportPath,Imports,Deps,GoFiles,TestGoFiles,XTestGoFiles"},
			arguments...)...)
	command.Dir = parts.Root()
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.Bytes())
	}
	var packages []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// room returns the directory to which a package belongs: agent/discovery for agent/discovery/store,
// agent, cmd/outrider, bootstrap, scripts.
func room(path string) string {
	names := strings.Split(path, "/")
	if (names[0] == "agent" || names[0] == "cmd") && len(names) > 1 {
		return names[0] + "/" + names[1]
	}
	return names[0]
}

// allowed reports whether a package in one room may import another package of the module.
func allowed(from, imported string) bool {
	if room(imported) == from || slices.Contains(leaves, imported) {
		return true
	}
	return slices.ContainsFunc(more[from], func(entry string) bool {
		folder, below := strings.CutSuffix(entry, "/...")
		return imported == folder || below && strings.HasPrefix(imported, folder+"/")
	})
}

func TestAllowed(t *testing.T) {
	cases := []struct {
		from, imported string
		want           bool
	}{
		{"agent/xds", "agent/resource", true},
		{"agent/xds", "agent/discovery", false},
		{"agent/discovery", "agent/discovery/store", true},
		{"agent/epoch", "agent/envoy", true},
		{"agent/epoch", "agent/keeper", false},
		{"agent/keeper", "scripts/load", false},
		{"agent", "agent/discovery/store", true},
		{"bootstrap", "agent/config", true},
		{"bootstrap", "agent/envoy", false},
		{"cmd/outriderd", "agent", true},
		{"cmd/outriderd", "agent/epoch", false},
		{"cmd/outrider", "agent", false},
	}
	for _, c := range cases {
		if allowed(c.from, c.imported) != c.want {
			t.Errorf("%s may import %s: %v", c.from, c.imported, !c.want)
		}
	}
}

func TestImports_PartsImportOnlyLeaves(t *testing.T) {
	for _, p := range list(t, "./...") {
		path, ok := strings.CutPrefix(p.ImportPath, module)
		if !ok {
			continue
		}
		for _, imported := range p.Imports {
			imported, ok := strings.CutPrefix(imported, module)
			if !ok {
				continue
			}
			switch {
			case slices.Contains(leaves, path) && !slices.Contains(leaves, imported):
				t.Errorf("%s is a leaf and imports %s", path, imported)
			case !allowed(room(path), imported):
				t.Errorf("%s imports %s: a part imports leaves only; declare a small interface "+
					"where it is used", path, imported)
			}
		}
	}
}

func TestDependencies_RegistriesOnlyInDiscoveryd(t *testing.T) {
	for _, p := range list(t, "./cmd/...") {
		if p.ImportPath == module+"cmd/outrider-discoveryd" || strings.HasPrefix(p.ImportPath,
			module+"cmd/outrider-discoveryd/") {
			continue
		}
		for _, dependency := range p.Deps {
			for _, client := range []string{"k8s.io/", "sigs.k8s.io/controller-runtime",
				"github.com/hashicorp/consul"} {
				if strings.HasPrefix(dependency, client) {
					t.Errorf("%s links %s", p.ImportPath, dependency)
				}
			}
			if strings.HasPrefix(dependency, module+"scripts") || dependency == "testing" {
				t.Errorf("%s links %s, which is for tests", p.ImportPath, dependency)
			}
		}
	}
}

func TestFilesAreShort(t *testing.T) {
	for _, p := range list(t, "./...") {
		for _, name := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
			text, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if lines := bytes.Count(text, []byte("\n")); lines > mostLines {
				t.Errorf("%s/%s has %d lines; at most %d, about one thing", p.ImportPath, name,
					lines, mostLines)
			}
			for forbidden := range strings.FieldsSeq(forbiddenTexts) {
				if name != "house_test.go" && bytes.Contains(text, []byte(forbidden)) {
					t.Errorf("%s/%s has %s…): a test that cannot run fails, and says why",
						p.ImportPath, name, forbidden)
				}
			}
		}
	}
}

// What is linked into outriderd stays in memory. Where a method is called by a name that only
// exists at run time, the linker keeps every method of every type.
func TestDependencies_OutriderdIsSmall(t *testing.T) {
	folder := t.TempDir()
	command := exec.Command(filepath.Join(parts.Root(), "scripts", "build"), folder,
		"-ldflags=-s -w -dumpdep", "./cmd/outriderd")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %.2000s", command, err, out)
	}
	info, err := os.Stat(filepath.Join(folder, "outriderd"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("outriderd has %.1f MB", float64(info.Size())/1e6)
	if info.Size() > mostBytes {
		t.Errorf("outriderd has %d bytes, more than %d", info.Size(), int(mostBytes))
	}
	if !bytes.Contains(out, []byte("main.main -> ")) {
		t.Errorf("the linker did not tell what it links: %.2000s", out)
	}
	for line := range bytes.Lines(out) {
		if caller, _, found := bytes.Cut(line, []byte(" <ReflectMethod> -> ")); found {
			t.Errorf("outriderd links %s, which calls methods by name", caller)
		}
	}
	tags, err := os.ReadFile(filepath.Join(parts.Root(), "scripts", "tags"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list(t, "-tags="+strings.TrimSpace(string(tags)), "./cmd/outriderd") {
		if !slices.Contains(p.Deps, "github.com/planetscale/vtprotobuf/protohelpers") {
			t.Error("outriderd is built without Envoy's own encoders")
		}
		for _, dependency := range p.Deps {
			if slices.Contains([]string{"text/template", "html/template", "golang.org/x/net/trace",
				"encoding/gob", module + "bootstrap/render", module + "bootstrap/envoytypes"}, dependency) {
				t.Errorf("outriderd links %s", dependency)
			}
		}
	}
}
