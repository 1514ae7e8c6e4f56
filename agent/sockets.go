package agent

import (
	"errors"
	"io/fs"
	"path/filepath"

	"outrider.org/outrider/agent/config"
)

// socketFault returns the error for a configuration key whose socket cannot be bound.
func socketFault(loaded *config.Loaded, key, path string, err error) error {
	fix := "or take another path"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fix = "make the folder " + filepath.Dir(path) + ", which the agent writes and Envoy reads"
	case errors.Is(err, fs.ErrPermission):
		fix = "let the agent's user write the folder " + filepath.Dir(path)
	}
	return config.Errors{loaded.KeyError(key, err.Error(), fix)}
}
