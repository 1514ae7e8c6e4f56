package envoytypes

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/agent/typedconfig"
)

var update = flag.Bool("update", false, "write the lists of imports")

const (
	api = "github.com/envoyproxy/go-control-plane/envoy/"
	// m_z.go has the imports from this path on in alphabetical order, a_l.go those before it
	half = api + "extensions/filters/m"
)

// TestAPI_IsThatOfTheModule compares typedconfig.LinkedEnvoyAPI with the version of
// go-control-plane/envoy.
func TestAPI_IsThatOfTheModule(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}",
		strings.TrimSuffix(api, "/")).Output()
	if err != nil || !strings.HasPrefix(string(out), "v"+typedconfig.LinkedEnvoyAPI+".") {
		t.Errorf("typedconfig.API is %s, the module %s (%v)", typedconfig.LinkedEnvoyAPI, out, err)
	}
}

// TestImports_HaveEveryPackage checks that the lists of imports contain each package of Envoy's API
// in the module.
func TestImports_HaveEveryPackage(t *testing.T) {
	out, err := exec.Command("go", "list", api+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for name := range strings.FieldsSeq(string(out)) {
		if strings.HasSuffix(name, "/v3") { // Envoy supports only v3
			packages = append(packages, name)
		}
	}
	slices.Sort(packages)
	if len(packages) < 300 {
		t.Fatalf("the module has %d packages", len(packages))
	}
	cut, _ := slices.BinarySearch(packages, half)
	for name, part := range map[string][]string{"a_l.go": packages[:cut], "m_z.go": packages[cut:]} {
		var text bytes.Buffer
		fmt.Fprint(&text, "package envoytypes\n\nimport (\n// Registers the types.\n")
		for _, p := range part {
			fmt.Fprintf(&text, "_ %q\n", p)
		}
		fmt.Fprint(&text, ")\n")
		want, err := format.Source(text.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(name, want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(name); err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s differs from the module (%v): go test ./bootstrap/envoytypes -update", name, err)
		}
	}
}
