// Package house tests the rules of the source tree: which packages may be imported and linked, and
// the form of code and documentation.
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

// Limits of the source tree.
const (
	mostLines = 400
	// mostBytes limits the size of the stripped outriderd. 0.3e6 of it is for the kind Telemetry
	// (types of Envoy's loggers and tracers), 0.15e6 for dynamic DNS (types of Envoy), 0.15e6 for
	// Istio's metrics (types of Envoy's logger for statistics and of its CEL filter), and 0.15e6
	// for extensions.
	mostBytes      = 34.6e6
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
	command.Dir = parts.RepositoryRoot()
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

// outriderd must stay small, because everything that is linked into it takes memory. In particular,
// no code may call a method by a name that is known only at run time: the linker would then keep
// every method of every type.
func TestDependencies_OutriderdIsSmall(t *testing.T) {
	folder := t.TempDir()
	command := exec.Command(filepath.Join(parts.RepositoryRoot(), "scripts", "build"), folder,
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
	tags, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "scripts", "tags"))
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
