package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/keeper"
)

// runtimeRoot is where packages have the agent's runtime folders; the keeper's are beside it.
const runtimeRoot = "/run/outrider"

// keeperSocket is the keeper's socket, in the runtime folder (systemd's) or in the keeper's own.
const keeperSocket = "keeper.sock"

// keeperFolder is the keeper's and Envoy's own folder: /run/outrider-envoy beside /run/outrider
// (interfaces.md), and with any other runtime folder a folder in it.
func keeperFolder(runtimeDir string) string {
	if rest, ok := strings.CutPrefix(runtimeDir, runtimeRoot); ok && (rest == "" || rest[0] == '/') {
		return runtimeRoot + "-envoy" + rest
	}
	return filepath.Join(runtimeDir, "keeper")
}

// envoyUser is blueprint.EnvoyUser for the keeper.
func envoyUser(c *config.Config) (*keeper.User, error) {
	found, err := blueprint.EnvoyUser(c)
	if found == nil || err != nil {
		return nil, err
	}
	return &keeper.User{UID: found.UID, GID: found.GID}, nil
}

// prepare makes the folders and takes the lock. Under systemd the folders are there already.
func (a *Agent) prepare(c *config.Config) error {
	if err := os.MkdirAll(c.Paths.RuntimeDir, 0o755); err != nil {
		return fmt.Errorf("make the runtime folder: %w", err)
	}
	var err error
	if a.lockFile, err = lock(c.Paths.RuntimeDir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Paths.StateDir, 0o700); err != nil {
		return fmt.Errorf("make the state folder: %w", err)
	}
	for _, folder := range []string{
		c.Envoy.ConfigDir, filepath.Dir(c.XDS.Socket), filepath.Dir(c.SDS.Socket),
	} {
		if err := a.envoyFolder(c, folder); err != nil {
			return err
		}
	}
	return nil
}

// envoyFolder makes a folder that the agent writes and Envoy reads: its files are the agent's and
// of Envoy's group.
func (a *Agent) envoyFolder(c *config.Config, folder string) error {
	_, err := os.Stat(folder)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return fmt.Errorf("make Envoy's configuration folder: %w", err)
	}
	other, err := envoyUser(c)
	if err != nil || other == nil {
		return err
	}
	if err := os.Chown(folder, -1, int(other.GID)); err != nil {
		return fmt.Errorf("let Envoy read its configuration folder: %w", err)
	}
	return os.Chmod(folder, 0o750|fs.ModeSetgid)
}

// release lets another agent run.
func (a *Agent) release() { _ = a.lockFile.Close() }

// tidy removes what an orderly end leaves of this agent. Envoy's own is the keeper's.
func (a *Agent) tidy() {
	c := a.reloader.InForce().Config
	old, err := filepath.Glob(filepath.Join(c.Envoy.ConfigDir, "envoy-rev*.json"))
	if err != nil {
		old = nil
	}
	for _, path := range append(old, filepath.Join(c.Paths.RuntimeDir, lockName)) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.log.Warn("left behind", "error", err)
		}
	}
}
