package validate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
)

// Valid parts of specs, for cases that test other fields.
const (
	goodEntry = "hosts: [a.test]\nresolution: STATIC\n" +
		"ports: [{number: 80, name: http, protocol: HTTP}]\nendpoints: [{address: 10.0.0.1}]\n"
	chosenEntry = "hosts: [a.test]\nresolution: STATIC\n" +
		"ports: [{number: 80, name: http, protocol: HTTP}]\n"
	goodRoute = "hosts: [a.test]\nhttp: [{route: [{destination: {host: a.test}}]}]\n"
	locality  = "host: a\ntrafficPolicy: {loadBalancer: {localityLbSetting: {"
	httpsPort = "servers:\n- port: {number: 443, name: s, protocol: HTTPS}\n  hosts: ['*']\n  tls: "
)

func readOne(t *testing.T, kind, spec string, check func(*object.Object) []object.Finding) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.yaml")
	group, version := "networking", "v1"
	switch {
	case object.Kind(kind).IsExtension():
		group, version = "extensions", "v1alpha1"
	case object.Kind(kind).CanRestrictAccess():
		group = "security"
	case object.Kind(kind) == object.Telemetry:
		group = "telemetry"
	}
	content := "apiVersion: " + group + ".istio.io/" + version + "\nkind: " + kind +
		"\nmetadata: {name: x}\nspec:\n  " + strings.ReplaceAll(spec, "\n", "\n  ") + "\n"
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	called := false
	s := store.New(store.Options{Paths: []string{path}, Namespace: "ns",
		Validate: func(o *object.Object) []object.Finding {
			if o.Name != "x" {
				// o is not the object x but its denial, which the store adds if x is an invalid
				// policy
				return nil
			}
			called = true
			return check(o)
		}})
	s.Load()
	if !called {
		t.Fatalf("not read: %v", s.Problems())
	}
	for _, p := range s.Problems() {
		if p.Line < 5 && !strings.HasPrefix(p.Message, "every request to") && p.Field != "spec.hosts" &&
			!strings.Contains(p.Field, "servers") &&
			!strings.Contains(p.Field, "http") && p.Field != "spec.tls" {
			t.Errorf("line %d of %s", p.Line, p)
		}
	}
}
