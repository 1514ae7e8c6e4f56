package house

import (
	"go/types"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"outrider.org/outrider/scripts/parts"
)

// foreign contains the interfaces that only types of other modules implement, with a description of
// these types.
var foreign = map[string]string{
	"agent/discovery/patch.configured":          "Envoy's filters and transport sockets",
	"agent/discovery/model.targeted":            "Istio's policies that name their targets",
	"agent/discovery/translate.connectionMatch": "Istio's matches of tls and tcp routes",
}

// implementations contains the names of the types that implement an interface, outside of tests and
// in tests.
type implementations struct{ products, tests map[string]bool }

// interfacesOf returns the interfaces with methods that a package, and the packages of this module
// that it imports, declare outside of tests.
func interfacesOf(p *packages.Package) map[string]*types.Interface {
	all := map[string]*types.Interface{}
	seen := map[*types.Package]bool{}
	var visit func(*types.Package)
	visit = func(of *types.Package) {
		if seen[of] || !strings.HasPrefix(of.Path(), module) {
			return
		}
		seen[of] = true
		for _, name := range of.Scope().Names() {
			object, ok := of.Scope().Lookup(name).(*types.TypeName)
			if !ok || strings.HasSuffix(p.Fset.Position(object.Pos()).Filename, "_test.go") {
				continue
			}
			i, ok := object.Type().Underlying().(*types.Interface)
			named, _ := object.Type().(*types.Named)
			if ok && i.IsMethodSet() && !i.Empty() && named != nil && named.TypeParams() == nil {
				all[strings.TrimPrefix(of.Path(), module)+"."+name] = i
			}
		}
		for _, imported := range of.Imports() {
			visit(imported)
		}
	}
	visit(p.Types)
	return all
}

// addImplementations adds the types of a package that implement interfaces of this module.
func addImplementations(found map[string]implementations, p *packages.Package) {
	interfaces := interfacesOf(p)
	for key := range interfaces {
		if found[key].products == nil {
			found[key] = implementations{map[string]bool{}, map[string]bool{}}
		}
	}
	for id, object := range p.TypesInfo.Defs {
		name, ok := object.(*types.TypeName)
		if !ok || types.IsInterface(name.Type()) {
			continue
		}
		if named, ok := name.Type().(*types.Named); !ok || named.TypeParams() != nil {
			continue
		}
		test := strings.HasSuffix(p.Fset.Position(id.Pos()).Filename, "_test.go")
		for key, i := range interfaces {
			if !types.Implements(types.NewPointer(name.Type()), i) {
				continue
			}
			if test {
				found[key].tests[name.Name()] = true
			} else {
				found[key].products[p.PkgPath+"."+name.Name()] = true
			}
		}
	}
}

// Each interface must have two implementations, one of which may be in a test, unless it is in
// foreign. The test compiles all packages again, so it runs only with OUTRIDER_TEST_FULL=1 (make
// bench).
func TestInterfaces_HaveTwoImplementations(t *testing.T) {
	if os.Getenv("OUTRIDER_TEST_FULL") == "" {
		return
	}
	loaded, err := packages.Load(&packages.Config{Dir: parts.RepositoryRoot(), Tests: true,
		Mode: packages.LoadSyntax}, "./...")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]implementations{}
	for _, p := range loaded {
		addImplementations(found, p)
	}
	if len(found) < 20 {
		t.Fatalf("only %d interfaces were found", len(found))
	}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		f := found[key]
		if len(f.products) < 2 && len(f.tests) == 0 && foreign[key] == "" {
			t.Errorf("%s: use the only implementation (%s) in place of the interface", key,
				strings.Join(slices.Sorted(maps.Keys(f.products)), " "))
		}
	}
}
