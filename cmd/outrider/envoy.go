package main

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"time"

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

// store returns the store of installed Envoys.
func (a *app) store() envoys.Store {
	return envoys.Store{Folder: a.places.envoys, Link: filepath.Join(a.places.envoys, "envoy")}
}

func (a *app) installer() *envoys.Installer {
	return &envoys.Installer{Store: a.store(), Releases: envoys.Releases(), Arch: runtime.GOARCH}
}

// forRoot converts a permission error to exit code 4.
func forRoot(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return &api.Error{Status: http.StatusForbidden,
			Message: "only root can install or choose an Envoy: " + err.Error()}
	}
	return err
}

// listedEnvoy is a line of `outrider envoy list`.
type listedEnvoy struct {
	Version   string `json:"version"`
	Path      string `json:"path,omitempty"` // "": not installed
	Installed bool   `json:"installed"`
	Selected  bool   `json:"selected"` // by `outrider envoy use`
	Running   bool   `json:"running"`  // by the agent or the instance
	Known     bool   `json:"known"`    // `outrider envoy install` needs no hash for it
}

func (e listedEnvoy) state() string {
	switch {
	case e.Running && e.Selected:
		return "running, selected"
	case e.Running:
		return "running"
	case e.Selected:
		return "selected"
	case e.Installed:
		return "installed"
	}
	return "available"
}

func (a *app) envoyListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the Envoys on this host, and those that can be installed",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			listed, err := a.listEnvoys(command.Context())
			if err != nil {
				return err
			}
			return a.print(listed, func() {
				t := &table{head: []string{"VERSION", "STATE", "PATH"}}
				for _, one := range listed {
					t.add(one.Version, one.state(), one.Path)
				}
				a.write(t, "")
			})
		},
	}
}

// listEnvoys lists the installed, available and running versions.
func (a *app) listEnvoys(ctx context.Context) ([]listedEnvoy, error) {
	store := a.store()
	installed, err := store.Installed()
	if err != nil {
		return nil, err
	}
	selected, err := store.Selected()
	if err != nil {
		return nil, err
	}
	known := a.installer().Versions()
	var listed []listedEnvoy
	for _, version := range installed {
		listed = append(listed, listedEnvoy{Version: version, Path: store.Path(version),
			Installed: true, Selected: version == selected, Known: slices.Contains(known, version)})
	}
	for _, version := range known {
		if !slices.Contains(installed, version) {
			listed = append(listed, listedEnvoy{Version: version, Known: true})
		}
	}
	client := a.client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	status, err := client.Status(ctx)
	if err != nil || status.Envoy.Path == "" { // no agent, no running Envoy
		return listed, nil
	}
	i := slices.IndexFunc(listed, func(l listedEnvoy) bool { return l.Path == status.Envoy.Path })
	if i < 0 { // not installed by Outrider
		listed = append(listed, listedEnvoy{Version: status.Envoy.Version, Path: status.Envoy.Path})
		i = len(listed) - 1
	}
	listed[i].Running = true
	return listed, nil
}
