package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/cmd/outrider/istiovm"
)

func (a *app) importCommand() *cobra.Command {
	return group("import", "Convert the configuration of another agent", a.importIstioCommand())
}

func (a *app) importIstioCommand() *cobra.Command {
	var apply, replace bool
	command := &cobra.Command{
		Use:   "istio DIR",
		Short: "Convert the files of an Istio VM to a configuration",
		Long: "Istio reads the directory that \"istioctl x workload entry configure\" wrote\n" +
			"(cluster.env, mesh.yaml, istio-token, root-cert.pem, hosts; sidecar.env where\n" +
			"there is one) and prints a configuration file. What has no equivalent, or\n" +
			"differs, is a comment at its beginning.\n\n" +
			"With --apply it places the file in conf.d, the token and the root beside it, and\n" +
			"adds the names of istiod to /etc/hosts. Only the agent's user may read the token.\n" +
			"It changes nothing if a file exists with other content, except with --replace.",
		Example: "  outrider import istio vm-files --apply && outrider config check\n" +
			"  systemctl disable --now istio && systemctl enable --now outrider",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) (
			[]string, cobra.ShellCompDirective,
		) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			return a.importIstio(command.Context(), arguments[0], apply, replace)
		},
	}
	command.Flags().BoolVar(&apply, "apply", false, "place the files on this host")
	command.Flags().BoolVar(&replace, "replace", false,
		"with --apply: replace files that have other content")
	return command
}

// imported is the JSON output of "outrider import istio".
type imported struct {
	Config string       `json:"config"`
	Notes  []string     `json:"notes"`
	Files  []targetFile `json:"files,omitempty"` // with --apply only: the written files
}

func (a *app) importIstio(
	ctx context.Context, directory string, apply, replace bool,
) error {
	source, err := istiovm.Read(directory)
	if err != nil {
		return err
	}
	if err := parseCredentials(directory, source); err != nil {
		return err
	}
	// prefix of an instance's paths: DIR/NAME.
	base := filepath.Join(a.paths.configuration, a.instance)
	if a.instance != "" {
		base += "."
	} else {
		base += "/"
	}
	to := istiovm.Paths{Token: base + "istio/istio-token", Root: base + "istio/root-cert.pem"}
	result, err := source.Convert(to)
	if err != nil {
		return err
	}
	shown := imported{Config: result.Config, Notes: result.Notes}
	if apply {
		main := base + "toml"
		if a.instance == "" {
			main = base + "outrider.toml"
		}
		p := targets{user: cmp.Or(a.unit(ctx, a.unitName()+".service").User, "outrider"),
			group: main, replace: replace}
		p.add(to.Root, source.Root, 0o644)
		p.add(to.Token, source.Token, 0o400) // readable only for the agent's user
		p.addHosts(a.paths.hosts, source.Hosts)
		p.add(base+"conf.d/50-istio.toml", []byte(result.Config), 0o640)
		if shown.Files, err = p.write(); err != nil {
			return err
		}
	}
	return a.print(shown, func() {
		if !apply {
			fmt.Fprint(a.out, result.Config)
			return
		}
		for _, file := range shown.Files {
			fmt.Fprintf(a.out, "%s: %s\n", file.Path, file.Result)
			for _, line := range file.Lines {
				fmt.Fprintln(a.out, "+", line)
			}
		}
		for _, note := range result.Notes {
			fmt.Fprintln(a.out, "note:", note)
		}
	})
}

// parseCredentials checks the token and the root certificates. It removes everything from
// source.Root that is not a certificate.
func parseCredentials(directory string, source *istiovm.VMFiles) error {
	if len(source.Token) > 0 {
		if _, err := pki.ParseToken(filepath.Join(directory, "istio-token"), source.Token); err != nil {
			return err
		}
	}
	if len(source.Root) > 0 {
		roots, err := pki.ParseRoots(
			pki.PEMInput{File: filepath.Join(directory, "root-cert.pem"), PEM: source.Root}, time.Now())
		if err != nil {
			return err
		}
		source.Root = pki.EncodeCertificates(roots)
	}
	return nil
}
