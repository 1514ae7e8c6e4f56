package explain

import (
	"encoding/base64"
	"strings"
	"testing"

	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"

	"outrider.org/outrider/agent/jwt"
	"outrider.org/outrider/agent/resource"
)

// TestAuthenticate_NamesRequestAuthentications evaluates invalid tokens at a proxy with several
// RequestAuthentications. The result names the RequestAuthentication with the token's issuer, or
// all of them if none has it.
func TestAuthenticate_NamesRequestAuthentications(t *testing.T) {
	provider := func(name string) *jwtv3.JwtRequirement {
		return &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_ProviderName{
			ProviderName: "ns[shop]-policy[" + name + "]-rule[0]"}}
	}
	required := &jwtv3.JwtRequirement{RequiresType: &jwtv3.JwtRequirement_RequiresAny{
		RequiresAny: &jwtv3.JwtRequirementOrList{Requirements: []*jwtv3.JwtRequirement{
			provider("first"), provider("second"), {
				RequiresType: &jwtv3.JwtRequirement_RequiresAll{
					RequiresAll: &jwtv3.JwtRequirementAndList{
						Requirements: []*jwtv3.JwtRequirement{provider("first")}}}}}}}}
	providers := map[string]*jwtv3.JwtProvider{
		"ns[shop]-policy[first]-rule[0]":  {Issuer: "a"},
		"ns[shop]-policy[second]-rule[0]": {Issuer: "b"},
	}
	origins := []resource.Origin{{Namespace: "shop", Name: "first"}, {Namespace: "shop", Name: "second"},
		{Namespace: "other", Name: "second"}}
	encode := base64.RawURLEncoding.EncodeToString
	for _, test := range []struct {
		name, claims string
		fault        jwt.Fault
		want         string
	}{
		{"expired, of the first", `{"iss":"a","exp":1}`, expiredToken, "first"},
		{"expired, of the second", `{"iss":"b","exp":1}`, expiredToken, "second"},
		{"of neither", `{"iss":"c"}`, unknownIssuer, "first second"},
	} {
		token := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(test.claims)) + ".c2ln"
		a := &authentication{explanation: &explanation{request: Request{
			Headers: []Header{{Name: "authorization", Value: "Bearer " + token}}}}, providers: providers}
		fault, by := a.require(required)
		var got []string
		for _, o := range ofProviders(origins, by) {
			if o.Namespace == "shop" {
				got = append(got, o.Name)
			} else {
				t.Errorf("%s: %v is named", test.name, o)
			}
		}
		if fault != test.fault || strings.Join(got, " ") != test.want {
			t.Errorf("%s: %s by %v, want %s by %s", test.name, fault, got, test.fault, test.want)
		}
	}
	if got := ofProviders(origins, []string{"of an EnvoyFilter"}); len(got) != len(origins) {
		t.Errorf("of another provider: %v", got)
	}
}
