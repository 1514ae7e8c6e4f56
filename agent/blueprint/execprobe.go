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

// CheckExecProbe returns an error if another user could replace the program of [health] exec: in a
// unit any but root, in the foreground any but root and the user of this process. A program that
// does not exist is none: it may be installed later. before is the command in force, nil in a check
// without an agent: an unchanged one fails as a probe, and refuses neither a start nor another
// change, so that the owner of an application's files does not decide whether Envoy runs.
func CheckExecProbe(loaded *config.Loaded, before []string, inUnit bool) *config.Error {
	command := loaded.Config.Health.Exec
	if len(command) == 0 || slices.Equal(command, before) {
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
	return loaded.Fault("health.exec", err.Error(), "or use http, tcp or unit")
}
