package translate_test

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"

	"outrider.org/outrider/agent/discovery/meshtest"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/jwks"
)

func TestAuthenticate(t *testing.T) {
	meshtest.Golden(t, "testdata/tokens/*.txtar", *update,
		func(t *testing.T, m *meshtest.Mesh, proxy model.Node) string {
			tokens := translate.RequestAuthentications(m.Mesh, proxy)
			if len(tokens.Problems) > 0 || len(tokens.Filters) != 1 {
				t.Fatalf("%d filters, %v", len(tokens.Filters), tokens.Problems)
			}
			config := &jwtv3.JwtAuthentication{}
			if err := tokens.Filters[0].GetTypedConfig().UnmarshalTo(config); err != nil {
				t.Fatal(err)
			}
			for _, provider := range config.Providers {
				keys := provider.GetLocalJwks().GetSpecifier().(*corev3.DataSource_InlineString)
				if keys.InlineString == jwks.UnusableKeySet() {
					keys.InlineString = "no keys"
				}
			}
			return meshtest.YAML(t, config, nil)
		})
}
