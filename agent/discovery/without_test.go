package discovery_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"outrider.org/outrider/agent/condition"
)

// everyConfiguration returns the configurations of the golden files, of the files for default
// values, and of the cases.
func everyConfiguration(t *testing.T, cases []*conformanceCase) (all []configuration) {
	t.Helper()
	golden, err := filepath.Glob(filepath.Join("testdata", "golden", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	defaults, err := filepath.Glob(filepath.Join("testdata", "defaults", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range slices.Concat(golden, defaults) {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c := goldenConfiguration(archive)
		c.name = file
		for _, p := range c.serve(t).Problems() {
			// an invalid object has no resources, whether it has the field or not
			if p.Severity == condition.Error {
				t.Error(p)
			}
		}
		all = append(all, c)
	}
	for _, c := range cases {
		all = append(all, configuration{name: c.name, kind: c.node, mesh: c.mesh,
			meshConfig: c.meshConfig})
	}
	return all
}

// isDefault checks that a value is the default: every configuration that has it results in the same
// resources without it.
func (a *istioAPI) isDefault(t *testing.T, key string, known []configuration) {
	t.Helper()
	if a.wordless[key] {
		return // the key is the default value of an enum, which nothing can remove
	}
	path, _, _ := strings.Cut(key, "=")
	field := path[strings.LastIndex(path, ".")+1:]
	having := 0
	for _, c := range known {
		if !strings.Contains(c.mesh, field) && !strings.Contains(c.meshConfig, field) {
			continue // saves decoding a text without the field
		}
		stripped, same := a.sameWithout(t, key, c)
		if stripped > 0 {
			having++
		}
		if !same {
			t.Errorf("testdata/conformance/unshown: %s is no default: %s becomes something else "+
				"without it", key, c.name)
		}
	}
	if having == 0 {
		t.Errorf("testdata/conformance/unshown: that %s is the default is not known: nothing in "+
			"testdata/golden and testdata/defaults has it, and no case", key)
	}
}

// sameWithout returns how many fields were removed from a configuration, and whether its resources
// are the same without them.
func (a *istioAPI) sameWithout(t *testing.T, key string, c configuration) (stripped int,
	same bool) {
	t.Helper()
	after, stripped := a.strippedOf(t, key, c)
	if stripped == 0 {
		return 0, true
	}
	// Encoding moves the objects to other lines, which are part of their origins. So c is also
	// encoded without a removal, and both encodings are compared.
	before, _ := a.strippedOf(t, "", c)
	becomes := func(c configuration) string {
		return string(txtar.Format(&txtar.Archive{Files: readable(t, feedOf(t, c.serve(t),
			c.kind))}))
	}
	return stripped, becomes(before) == becomes(after)
}

// strippedOf removes a field from a configuration, and returns how many were removed.
func (a *istioAPI) strippedOf(t *testing.T, key string, c configuration) (configuration, int) {
	t.Helper()
	var stripped int
	c.mesh, stripped = a.without(t, key, c.mesh)
	if c.meshConfig != "" {
		left, also := a.withoutInMesh(t, key, c.meshConfig)
		c.meshConfig = left
		stripped += also
	}
	return c, stripped
}
