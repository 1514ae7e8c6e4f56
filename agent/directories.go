package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/keeper"
)

// runtimeRoot contains the runtime directories of packaged agents. The directories of their keepers
// are below /run/outrider-envoy.
const runtimeRoot = "/run/outrider"

// keeperSocket is the name of the keeper's socket. The socket is in the agent's runtime directory
// under systemd, and in the keeper's directory in the foreground.
const keeperSocket = "keeper.sock"

// keeperFolder returns the directory of the keeper and Envoy: below /run/outrider-envoy for a
// runtime directory below /run/outrider, otherwise a subdirectory of the runtime directory.
func keeperFolder(runtimeDir string) string {
	if rest, ok := strings.CutPrefix(runtimeDir, runtimeRoot); ok &&
		(rest == "" || rest[0] == '/') {
		return runtimeRoot + "-envoy" + rest
	}
	return filepath.Join(runtimeDir, "keeper")
}

// envoyUser converts the user that blueprint.EnvoyUser returns to the keeper's type; nil if there
// is none.
func envoyUser(c *config.Config) (*keeper.User, error) {
	found, err := blueprint.EnvoyUser(c)
	if found == nil || err != nil {
		return nil, err
	}
	return &keeper.User{UID: found.Uid, GID: found.Gid}, nil
}

// prepare creates the directories and acquires the lock of the runtime directory, which lasts until
// locked is closed or the process ends. Under systemd the directories already exist.
func prepare(c *config.Config) (locked *os.File, err error) {
	if err := os.MkdirAll(c.Paths.RuntimeDir, 0o755); err != nil {
		return nil, fmt.Errorf("create the runtime directory: %w", err)
	}
	if locked, err = lock(c.Paths.RuntimeDir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = locked.Close()
		}
	}()
	if err := os.MkdirAll(c.Paths.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("create the state directory: %w", err)
	}
	for _, folder := range []string{
		c.Envoy.ConfigDir, filepath.Dir(c.XDS.Socket), filepath.Dir(c.SDS.Socket),
	} {
		if err := envoyFolder(c, folder); err != nil {
			return nil, err
		}
	}
	return locked, nil
}

// envoyFolder creates a directory that the agent can write and Envoy's group can read. An existing
// directory is not changed.
func envoyFolder(c *config.Config, folder string) error {
	_, err := os.Stat(folder)
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return fmt.Errorf("create a directory for files that Envoy reads: %w", err)
	}
	other, err := envoyUser(c)
	if err != nil || other == nil {
		return err
	}
	if err := os.Chown(folder, -1, int(other.GID)); err != nil {
		return fmt.Errorf("make a directory readable for Envoy: %w", err)
	}
	return os.Chmod(folder, 0o750|fs.ModeSetgid)
}

// tidy removes the agent's bootstrap files and lock file after an orderly stop. The keeper removes
// its own files.
func tidy(c *config.Config, log *slog.Logger) {
	old, err := filepath.Glob(filepath.Join(c.Envoy.ConfigDir, "envoy-rev*.json"))
	if err != nil {
		old = nil
	}
	for _, path := range append(old, filepath.Join(c.Paths.RuntimeDir, lockName)) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warn("cannot remove runtime file on shutdown", "error", err)
		}
	}
}
