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

// runtimeRoot holds the runtime directories of packaged agents; the keeper's are in its sibling
// /run/outrider-envoy.
const runtimeRoot = "/run/outrider"

// keeperSocket is the name of the keeper's socket: under systemd in the runtime directory, in the
// foreground in the keeper's own.
const keeperSocket = "keeper.sock"

// keeperFolder returns the directory of the keeper and Envoy: /run/outrider-envoy beside
// /run/outrider (interfaces.md), otherwise a subdirectory of the runtime directory.
func keeperFolder(runtimeDir string) string {
	if rest, ok := strings.CutPrefix(runtimeDir, runtimeRoot); ok &&
		(rest == "" || rest[0] == '/') {
		return runtimeRoot + "-envoy" + rest
	}
	return filepath.Join(runtimeDir, "keeper")
}

// envoyUser returns the user of blueprint.EnvoyUser in the keeper's type; nil if there is none.
func envoyUser(c *config.Config) (*keeper.User, error) {
	found, err := blueprint.EnvoyUser(c)
	if found == nil || err != nil {
		return nil, err
	}
	return &keeper.User{UID: found.Uid, GID: found.Gid}, nil
}

// prepare creates the directories and acquires the lock. Under systemd the directories exist
// already.
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

// envoyFolder creates a directory that the agent writes and Envoy's group can read. An existing one
// is not changed.
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

// release releases the lock.
func (a *Agent) release() { _ = a.lockFile.Close() }

// tidy removes the agent's bootstrap files and lock file after an orderly stop. The keeper removes
// its own files.
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
