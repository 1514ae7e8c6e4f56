package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/object"
)

func TestRestrictions(t *testing.T) {
	policy := func(kind, spec string) string {
		return "apiVersion: security.istio.io/v1\nkind: " + kind + "\nmetadata: {name: x}\n" + spec
	}
	plugin := func(kind, spec string) string {
		return "apiVersion: extensions.istio.io/v1alpha1\nkind: " + kind +
			"\nmetadata: {name: x}\nspec: " + spec
	}
	for text, restricts := range map[string]bool{
		policy("AuthorizationPolicy",
			"spec: {action: DENIED}"): true, // unknown action
		policy("PeerAuthentication",
			"spec: {mtls: STRICT}"): true, // invalid mtls
		policy("PeerAuthentication",
			"spec: {portLevelMtls: {80: {mode: STRICT}}}"): true, // invalid without a selector
		strings.Replace(policy("PeerAuthentication",
			"spec: {mtls: {mode: STRICT}}"), "{name: x}", "{}", 1): true, // without a name
		policy("RequestAuthentication",
			"spec: {jwtRules: [{issuer: a}]}"): false,
		policy("RequestAuthentication",
			"spec: {jwtRules: [{issuer: a, jwks: no}]}"): true, // invalid jwks
		policy("RequestAuthentication",
			"spec: {jwtRules: [{issuers: a}]}"): true, // unknown field
		policy("AuthorisationPolicy",
			"spec: {rules: [{}]}"): true, // misspelt
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: x}, spec: {a: 1}}": true,
		"apiVersion: v1\nkind: AuthorizationPolicy\nmetadata: {name: x}\n":                                                                       true,
		"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: 5}\n":                                                     true,
		plugin("WasmPlugin",
			"{url: file:///a, phase: AUTHZ}"): true,
		plugin("WasmPlugin",
			"{url: file:///a, phase: STATS}"): false,
		plugin("WasmPlugin",
			"{url: file:///a}"): false,
		plugin("TrafficExtension",
			"{phase: AUTHN}"): true,
		"apiVersion: policy.linkerd.io/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {name: x}": false,
		"apiVersion: security.istio.com/v1\nkind: AuthorizationPolicy\nmetadata: {name: x}":      true,
		"apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: x}\nspec: {}":      false,
	} {
		f := newFiles(t)
		f.write("x.yaml", text+"\n")
		f.store.Load()
		if got := f.store.Restricted(false); got != restricts {
			t.Errorf("restricted: %v, want %v\n%s", got, restricts, text)
		}
		severity := condition.Warning
		if restricts {
			severity = condition.Error
		}
		if problems := f.store.Problems(); len(problems) == 0 ||
			problems[len(problems)-1].Severity != severity {
			t.Errorf("problems %v, want one of severity %s\n%s", problems, severity, text)
		}
	}
}

func TestRestriction_StaysWhileItsFileCannotBeRead(t *testing.T) {
	f, was := newFiles(t), false
	for _, step := range []struct {
		text string
		want bool
	}{
		{"a: [", false}, // had no restriction before
		{"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: x}\n" +
			"spec: {action: DENIED}\n", true},
		{"a: [", true},
		{"", false},
		{"a: [", false},
	} {
		f.write("x.yaml", step.text)
		f.store.Load()
		if got := f.store.Restricted(was); got != step.want {
			t.Errorf("%q: restricted: %v, want %v", step.text, got, step.want)
		}
		was = step.want
	}
}

// TestRestriction_MayBeInUnreadableText loads files that no store read before.
func TestRestriction_MayBeInUnreadableText(t *testing.T) {
	const strict = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n" +
		"metadata: {name: x}\nspec: {mtls: {mode: STRICT}}\n"
	for text, restricts := range map[string]bool{
		strict:                            false, // supported
		strict + "a: [":                   true,
		"\"kind\": \"AuthorizationPolicy": true,
		"apiVersion: extensions.istio.io/v1alpha1\nspec: {":            true,
		"- {apiVersion: security.istio.io/v1, kind: PeerAuth}":         true, // no mapping
		strings.Replace(strict, "kind", "knd", 1):                      true,
		"apiVersion: v1\nkind: List\nitems: {a: {kind: WasmPlugin}}\n": true,
		entry("a", "a.test") + strict:                                  true, // --- is missing
		entry("a", "a.test") + "b: [":                                  false,
		strict + "---\n" + entry("a", "a.test") + "b: [":               false,
	} {
		f := newFiles(t)
		f.write("x.yaml", text)
		f.store.Load()
		if got := f.store.Restricted(false); got != restricts {
			t.Errorf("restricted: %v, want %v\n%s", got, restricts, text)
		}
	}
}

// TestRestriction_MayBeInUnreadableFile removes the permissions of a file that no store read
// before.
func TestRestriction_MayBeInUnreadableFile(t *testing.T) {
	f := newFiles(t)
	f.write("a.yaml", entry("a", "a.test"))
	for _, folder := range []string{f.directory, filepath.Dir(f.directory)} {
		if err := os.Chmod(folder, 0o755); err != nil { //nolint:gosec // of tests
			t.Fatal(err)
		}
	}
	withoutRights(t)
	for _, step := range []struct {
		mode os.FileMode
		want bool
	}{{0, true}, {0o644, false}, {0, false}} { // the last time, its objects are known
		asRoot(t, func() error { return os.Chmod(f.path("a.yaml"), step.mode) })
		f.store.Load()
		if got := f.store.Restricted(false); got != step.want {
			t.Errorf("mode %o: restricted: %v: %v", step.mode, got, f.store.Problems())
		}
	}
}

// TestRestriction_WithoutSpec refuses a policy without a spec, about which validation has a finding.
func TestRestriction_WithoutSpec(t *testing.T) {
	f := newFiles(t)
	f.store.options.Validate = func(*object.Object) []object.Finding {
		return []object.Finding{{Field: "rules", Severity: condition.Error, Message: "bad"}}
	}
	f.write("x.yaml", "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n"+
		"metadata: {name: x}\n")
	f.store.Load()
	if problems := f.store.Problems(); len(problems) != 1 || problems[0].Line != 1 ||
		!f.store.Restricted(false) {
		t.Errorf("problems %v", problems)
	}
}
