package main

import (
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/cmd/outrider/envoys"
)

func (a *app) envoyCommand() *cobra.Command {
	command := group("envoy", "Install Envoy, and choose the one that runs",
		a.envoyListCommand(), a.envoyInstallCommand(), a.envoyUseCommand())
	command.Long = "Envoys are installed side by side, in /usr/lib/outrider/envoy-VERSION.\n" +
		"Agents whose configuration names none ([envoy] binary) run the one that\n" +
		"\"outrider envoy use\" chose. Purging the deb, or removing the rpm, removes them."
	return command
}

// store returns the store of the Envoys that Outrider has installed.
func (a *app) store() envoys.Store {
	return envoys.Store{Folder: a.paths.envoys, Link: filepath.Join(a.paths.envoys, "envoy")}
}

func (a *app) installer() *envoys.Installer {
	return &envoys.Installer{Store: a.store(), Releases: envoys.Releases(), Arch: runtime.GOARCH}
}

// forRoot converts a permission error to an error with exit code 4 (not authorised).
func forRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &api.Error{Status: http.StatusForbidden,
			Message: "only root can install or choose an Envoy: " + err.Error()}
	}
	return err
}
