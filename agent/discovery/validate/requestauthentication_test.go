package validate_test

import "testing"

func TestSpecs_RequestAuthentication(t *testing.T) {
	const ra = "RequestAuthentication"
	rule := func(fields string) string {
		return "jwtRules: [{issuer: https://a.test, " + fields + "}]"
	}
	testSpecs(t, []specCase{
		{ra, "jwtRules: [{issuer: https://a.test}]", ""},
		{ra, "jwtRules: [{jwksUri: https://a.test/keys}]", ""},
		{ra, "jwtRules: [{jwks_uri: https://a.test/keys}]", ""},
		{ra, "{}", "?jwtRules: has no effect"},
		{ra, "selector: {}\njwtRules: [{issuer: https://a.test}]", "?selector: for all of its namespace"},
		{ra, "selector: {matchLabels: {a: '*'}}\njwtRules: [{issuer: https://a.test}]",
			"!selector.matchLabels[\"a\"]: stands for itself"},
		{ra, "jwtRules: [{audiences: [a]}]", "!jwtRules[0].issuer: neither an issuer nor a jwksUri"},
		{ra, "jwtRules: [{issuer: a@b.test}]", "?jwtRules[0].issuer: cannot be discovered"},
		{ra, rule("audiences: ['']"), "!jwtRules[0].audiences[0]: is empty"},
		{ra, rule("fromParams: ['']"), "!jwtRules[0].fromParams[0]: is empty"},
		{ra, rule("fromCookies: ['']"), "!jwtRules[0].fromCookies[0]: is empty"},
		{ra, rule("spaceDelimitedClaims: ['']"), "!jwtRules[0].spaceDelimitedClaims[0]: is empty"},
		{ra, rule("fromHeaders: [{prefix: a}]"), "!jwtRules[0].fromHeaders[0].name: without a name"},
		{ra, rule("fromHeaders: [{name: a, prefix: \"a\\n\"}]"), "!jwtRules[0].fromHeaders[0].prefix: line break"},
		{ra, rule("fromHeaders: [{name: 'a b'}]"), "?jwtRules[0].fromHeaders[0].name: no request has it"},
		{ra, rule("outputPayloadToHeader: \"a\\n\""), "!jwtRules[0].outputPayloadToHeader: no header's name"},
		{ra, rule("outputClaimToHeaders: [{header: a}]"), "!jwtRules[0].outputClaimToHeaders[0].claim: without a name"},
		{ra, rule("outputClaimToHeaders: [{claim: a, header: a.b}]"),
			"!jwtRules[0].outputClaimToHeaders[0].header: cannot be"},
		{ra, rule("timeout: 1ns"), "!jwtRules[0].timeout: too short"},
		{ra, rule("jwksUri: 'ftp://a.test'"), "!jwtRules[0].jwksUri: is no URL"},
		{ra, rule("jwksUri: 'https://a.test:b/'"), "!jwtRules[0].jwksUri: is no URL"},
		{ra, rule("jwksUri: 'http://a.test/'"), "?jwtRules[0].jwksUri: replace the keys"},
		{ra, rule("jwksUri: 'https://a.test/', jwks: '{\"keys\":[]}'"), "!jwtRules[0].jwks: together with jwksUri"},
		{ra, rule("jwks: '{\"keys\":[]}'"), ""},
		{ra, rule("jwks: '['"), "!jwtRules[0].jwks: is not a JSON object"},
		{ra, rule("jwks: '{\"kty\":\"oct\",\"k\":\"AQ\"}'"), "?jwtRules[0].jwks: is one key and no set"},
		{ra, rule("jwks: '{\"keys\":[{\"kty\":\"oct\",\"k\":\"AQ\"}]}'"), "?jwtRules[0].jwks: private or symmetric"},
	})
}
