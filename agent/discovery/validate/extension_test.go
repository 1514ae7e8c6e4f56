package validate_test

import "testing"

// TestExtension_GuardThatFailsOpen checks that a note says what FAIL_OPEN means in the phases AUTHN
// and AUTHZ.
func TestExtension_GuardThatFailsOpen(t *testing.T) {
	const wp, te = "WasmPlugin", "TrafficExtension"
	testSpecs(t, []specCase{
		{wp, "{url: 'file:///a', failStrategy: FAIL_OPEN}", ""},
		{wp, "{url: 'file:///a', failStrategy: FAIL_OPEN, phase: STATS}", ""},
		{wp, "{url: 'file:///a', failStrategy: FAIL_CLOSE, phase: AUTHZ}", ""},
		{wp, "{url: 'file:///a', failStrategy: FAIL_OPEN, phase: AUTHZ}", "-failStrategy: passes unchecked"},
		{wp, "{url: 'file:///a', failStrategy: FAIL_OPEN, phase: AUTHN}", "-failStrategy: FAIL_CLOSE"},
		{te, "{wasm: {url: 'file:///a', failStrategy: FAIL_OPEN}, phase: AUTHN}",
			"-wasm.failStrategy: passes unchecked"},
	})
}
