package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/bootstrap"
)

// inspectedName is the file in the state folder with what the Envoy on this host is. To ask Envoy itself takes three runs of it, which is
// most of the time a start needs, and the answer changes only with the file.
const inspectedName = "envoy-binary.json"

// renderedName is the file in the state folder with the last bootstrap and what it was made of: outrider-bootstrap is as large as half an
// agent, and to run it takes a fifth of the time from the agent's start to Envoy's.
const renderedName = "bootstrap.json"

// lastGoodName is the file in the state folder with what of the mesh is in force though its files are bad now, or refused by Envoy. It is there only then.
const lastGoodName = "mesh-last-good.json"

// blueprints makes blueprints of Envoys on this host, and remembers their bootstraps.
func (a *Agent) blueprints(c *config.Config) blueprint.Maker {
	maker := blueprint.ThisHost()
	program := &bootstrap.Program{Cache: filepath.Join(c.Paths.StateDir, renderedName), Version: a.options.Version, Log: a.logOf("reload")}
	maker.Render = program.Render
	return maker
}

// inspect says what the Envoy at a path is: as remembered while the file is the same, else as it says itself.
func (a *Agent) inspect(ctx context.Context, stateDir, path string) (*envoy.Binary, error) {
	identity, err := envoy.Identify(path)
	if err != nil {
		return nil, fmt.Errorf("look at Envoy: %w", err)
	}
	remembered := filepath.Join(stateDir, inspectedName)
	if known := a.binary.Load(); known != nil && known.Path == path && known.Identity == identity {
		return known, nil
	}
	if text, err := os.ReadFile(remembered); err == nil {
		var known envoy.Binary
		if json.Unmarshal(text, &known) == nil && known.Path == path && known.Identity == identity {
			a.binary.Store(&known)
			return &known, nil
		}
	}
	found, err := envoy.Inspect(ctx, runner{a.keeper}, path)
	if err != nil {
		return nil, err
	}
	a.binary.Store(found)
	text, err := json.Marshal(found)
	if err == nil {
		err = renameio.WriteFile(remembered, text, 0o600, renameio.WithTempDir(filepath.Dir(remembered)))
	}
	if err != nil {
		a.log.Warn("what Envoy is could not be remembered: the next start takes longer", "error", err)
	}
	return found, nil
}
