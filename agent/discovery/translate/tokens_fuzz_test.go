package translate_test

import (
	"testing"

	security "istio.io/api/security/v1beta1"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// FuzzAuthenticate translates arbitrary specs of RequestAuthentications. Envoy's API must not
// refuse what validation accepts.
func FuzzAuthenticate(f *testing.F) {
	for _, seed := range []string{"{}", "jwtRules: [{}]", "jwtRules: [{issuer: a}, {issuer: a}]",
		`jwtRules: [{issuer: a, jwks: '{"keys":[]}', audiences: [b], timeout: 1s}]`,
		`jwtRules: [{jwksUri: "https://a.test:1/b?c", fromHeaders: [{name: a, prefix: "b "}]}]`,
		`jwtRules: [{issuer: a, fromHeaders: [{}], fromParams: [b], fromCookies: [c]}]`,
		`jwtRules: [{issuer: a, outputPayloadToHeader: b, outputClaimToHeaders: [{header: c, claim: d}]}]`,
		`jwtRules: [{issuer: "a\n", outputPayloadToHeader: "b\0", spaceDelimitedClaims: [c]}]`,
		"selector: {matchLabels: {a: b}}\njwtRules: [{issuer: a, forwardOriginalToken: true}]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		spec := &security.RequestAuthentication{}
		w := worldOf(object.RequestAuthentication, spec, text)
		if w == nil {
			return
		}
		w.KeySetSources()
		node := model.Node{Namespace: "shop", Labels: spec.GetSelector().GetMatchLabels()}
		for _, p := range translate.RequestAuthentications(w, node).Problems {
			t.Errorf("%s\n%s", p, text)
		}
	})
}
