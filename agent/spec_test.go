package agent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery/validate"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/bootstrap"
)

// A ProxyConfig must not set variables that the agent itself sets in Envoy's environment.
func TestEnvoyEnvironment_IsReserved(t *testing.T) {
	for _, variable := range envoyEnvironment() {
		name, value, _ := strings.Cut(variable, "=")
		if len(validate.ProxySettings("", nil, "", map[string]string{name: value})) == 0 {
			t.Errorf("a ProxyConfig may set %s", name)
		}
	}
}

// A transient failure of outrider-bootstrap leads to an exit code with which systemd restarts the
// agent; an invalid configuration leads to another code.
func TestExitCodeOfABootstrapThatCannotBeMade(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "outrider.toml")
	put(t, file, "")
	loaded, err := config.Load(config.Options{Path: file,
		Environment: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	loaded.Config.Envoy.Binary = binary
	identity, err := envoy.Identify(binary)
	if err != nil {
		t.Fatal(err)
	}
	inspected, err := json.Marshal(envoy.Binary{Path: binary, Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(t.TempDir(), binaryCacheName)
	put(t, cache, string(inspected))
	for name, test := range map[string]struct {
		err  error
		code int
	}{
		"a file":    {&bootstrap.Error{File: "a.tmpl", Message: "wrong"}, ExitConfiguration},
		"the input": {errors.New("the node's ID is missing"), ExitConfiguration},
		"the program": {&bootstrap.RenderProgramError{Err: errors.New("signal: killed")},
			ExitInternal},
		"no program": {&bootstrap.RenderProgramError{Err: errors.New("no such file"),
			Missing: true},
			ExitProgramMissing},
	} {
		t.Run(name, func(t *testing.T) {
			m := &specMaker{Builder: blueprint.BuilderForThisHost(), cache: cache}
			m.RenderBootstrap = func(context.Context, bootstrap.Request) (*bootstrap.Rendered,
				error) {
				return nil, test.err
			}
			_, err := m.make(t.Context(), loaded, listener{phase: func(string) {},
				files: func([]string) {}})
			if exit, ok := errors.AsType[*ExitError](err); !ok || exit.Code != test.code {
				t.Errorf("%v (%+v), want the code %d", err, exit, test.code)
			}
		})
	}
}
