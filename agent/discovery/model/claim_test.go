package model_test

import (
	"slices"
	"testing"

	"outrider.org/outrider/agent/discovery/model"
)

func TestRoutingClaim(t *testing.T) {
	for key, want := range map[string][]string{
		"@request.auth.claims.sub": {"sub"}, "@request.auth.claims.a.b": {"a", "b"},
		"@Request.Auth.Claims[a.b][c]": {"a.b", "c"}, "@request.auth.claims[a]": {"a"},
		"@request.auth.claims": nil, "@request.auth.claims.": nil, "@request.auth.claims[]": nil,
		"@request.auth.claims-a": nil, "request.auth.claims.a": nil, "x": nil,
	} {
		if got, ok := model.ParseClaimHeader(key); !slices.Equal(got, want) || ok != (want != nil) {
			t.Errorf("%s: %q, %v", key, got, ok)
		}
	}
}
