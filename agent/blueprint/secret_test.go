package blueprint

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/bootstrap"
	"outrider.org/outrider/bootstrap/render"
)

func TestABootstrapWithASecretIsTold(t *testing.T) {
	h := newHost(t)
	if err := os.Mkdir(filepath.Join(h.dir, "credentials"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.write("credentials/token", "secret")
	h.write("credentials/override", "{}")
	h.write("token", "secret")
	h.write("override", "{}")
	environment := map[string]string{"CREDENTIALS_DIRECTORY": filepath.Join(h.dir, "credentials")}
	const tracing = "[tracing]\nprovider = \"lightstep\"\naddress = \"127.0.0.1:9411\"\n" +
		"access_token_file = "
	for name, test := range map[string]struct {
		toml   string
		secret bool
	}{
		"nothing": {"", false},
		"a file": {"[envoy]\nbootstrap_override = \"" + h.dir + "/override\"\n",
			false},
		"a file of a credential": {"[envoy]\nbootstrap_override = \"credential:override\"\n", true},
		"a token":                {tracing + "\"" + h.dir + "/token\"\n", true},
		"a token's credential":   {tracing + "\"credential:token\"\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, err := config.Load(config.Options{Path: h.write("outrider.toml", test.toml),
				Environment: func(name string) string { return environment[name] }})
			if err != nil {
				t.Fatal(err)
			}
			maker, secret := thisHost(), !test.secret
			maker.RenderBootstrap = func(
				_ context.Context, request bootstrap.Request,
			) (*bootstrap.Rendered, error) {
				secret = request.ResultIsSecret
				return render.FromRequest(request)
			}
			if _, err := maker.Build(t.Context(), loaded); err != nil {
				t.Fatal(err)
			}
			if secret != test.secret {
				t.Errorf("secret: %t, want %t", secret, test.secret)
			}
		})
	}
}
