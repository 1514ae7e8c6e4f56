package blueprint

import (
	"context"
	"testing"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/bootstrap/render"
)

// Without an identity provider the SDS socket serves credentials, but no workload certificate. The
// bootstrap must not request the certificate there: Envoy would start 15 s late.
func TestIdentity_NoneWithoutProvider(t *testing.T) {
	h := newHost(t)
	loaded, err := config.Load(config.Options{Path: h.write("outrider.toml", "")})
	if err != nil {
		t.Fatal(err)
	}
	maker := thisHost()
	maker.RenderBootstrap = func(_ context.Context, r bootstrap.Request) (*bootstrap.Rendered,
		error) {
		if r.Input.SDSSocket == "" || r.Input.Node.Identity {
			t.Errorf("socket %q, identity %t", r.Input.SDSSocket, r.Input.Node.Identity)
		}
		return render.FromRequest(r)
	}
	if _, err := maker.Build(t.Context(), loaded); err != nil {
		t.Fatal(err)
	}
}
