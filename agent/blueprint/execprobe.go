package blueprint

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"slices"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/probe/execprobe"
)

// CheckExecProbe returns an error if a foreign user could replace the program of [health] exec.
// Root is trusted, and so is the user of this process unless it runs in a systemd unit (inUnit). A
// missing program is no error, because it may be installed later.
//
// currentCommand is the command of the configuration in force; nil: no agent runs. CheckExecProbe
// returns no error for an unchanged command, whose probes fail instead. Otherwise the owner of an
// application's files could prevent starts and reloads of Envoy.
func CheckExecProbe(loaded *config.Loaded, currentCommand []string, inUnit bool) *config.Error {
	command := loaded.Config.Health.Exec
	if len(command) == 0 || slices.Equal(command, currentCommand) {
		return nil
	}
	owners := []int{0}
	if !inUnit {
		owners = append(owners, os.Geteuid())
	}
	_, err := execprobe.Find(command[0], owners...)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	return loaded.KeyError("health.exec", err.Error(), "or use http, tcp or unit")
}
