package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/sockdiag"
	"outrider.org/outrider/agent/typedconfig"
	"outrider.org/outrider/bootstrap"
)

func (a *app) meshCommand() *cobra.Command {
	command := group("mesh", "Check and explain the mesh configuration",
		a.meshCheckCommand("check [PATH]...", "Check Istio YAML as the embedded server would"),
		a.meshExplainCommand())
	command.Long = "The mesh configuration says what Envoy serves: /etc/outrider/mesh.d, in Istio's YAML.\n" +
		"outrider-mesh(5) describes it, with examples:\n\n" +
		"  man 5 outrider-mesh\n\n" +
		"The commands below check it and explain what happens to a request."
	return command
}

// analyzeCommand is an alias of `mesh check`, as in istioctl.
func (a *app) analyzeCommand() *cobra.Command {
	return a.meshCheckCommand("analyze [PATH]...", "The same as \"mesh check\"")
}

func (a *app) meshCheckCommand(use, short string) *cobra.Command {
	var meshConfig string
	var strict bool
	command := &cobra.Command{
		Use:   use,
		Short: short,
		Long: short + ": files and folders, as the proxy of this host would use\n" +
			"them. Without a path the running agent reads its files again, and reports what " +
			"Envoy refused of them too; without an\n" +
			"agent [discovery] files are checked. The MeshConfig is that of --mesh-config, or of " +
			"[discovery] mesh_config_file.\n\n" +
			"With a path and a running agent, valid files are also compared with what the agent " +
			"serves: each resource of Envoy that would be added, changed or removed is a line, " +
			"with the object that causes it. Nothing is sent to Envoy. Root and the group " +
			"outrider may compare; others only validate.\n\n" +
			"A path in [discovery] files, or below it, replaces what is there now. Another " +
			"folder stands for all [discovery] files: what it lacks is removed. Another file is " +
			"added to them, and its objects replace those with the same kind, namespace and " +
			"name. Problems are those of the result.\n\n" +
			"Problems are printed on standard error with file, line, object and field. The exit " +
			"code is 1 if one is an error, with --strict also if one is a warning.",
		RunE: func(command *cobra.Command, paths []string) error {
			if len(paths) == 0 && meshConfig == "" {
				// Only the agent knows which resources Envoy has refused.
				found, err := a.client().MeshProblems(command.Context())
				if err == nil {
					return a.printProblems([]string{"the mesh configuration in effect"},
						problemsOf(found), nil, strict)
				}
				if _, absent := errors.AsType[*api.NotRunningError](err); !absent {
					return err
				}
			}
			named := len(paths) > 0
			options, files, err := a.checkOptions(command.Context(), meshConfig)
			switch {
			case len(paths) > 0 && err != nil:
				options = discovery.CheckOptions{MeshConfigFile: meshConfig,
					TypedConfigs: bootstrap.NewTypedConfigChecker()}
			case err != nil:
				return fmt.Errorf("cannot determine [discovery] files, because the "+
					"configuration is not valid:\n%w\n"+
					"correct it, or specify mesh files as arguments", err)
			case len(paths) == 0:
				paths = files
			}
			for _, path := range paths {
				if _, err := os.Stat(path); named && err != nil {
					return fmt.Errorf("cannot read %s: %w", path, reason(err))
				}
			}
			problems, err := discovery.Check(paths, options)
			if err != nil {
				return err
			}
			if !named {
				return a.printProblems(paths, problems, nil, strict)
			}
			compared := comparison{not: errors.New("--mesh-config replaces the agent's MeshConfig")}
			switch {
			case withSeverity(problems, condition.Error) > 0:
				compared.not = errors.New("the files have errors; correct them first")
			case meshConfig == "":
				compared = a.compare(command.Context(), paths)
			}
			if compared.not == nil {
				problems = compared.problems
			}
			return a.printProblems(paths, problems, &compared, strict)
		},
	}
	command.Flags().BoolVar(&strict, "strict", false, "warnings are errors for the exit code")
	command.Flags().StringVar(&meshConfig, "mesh-config", "",
		"`file` with Istio's MeshConfig (default that of the configuration)")
	return command
}

// checkOptions reads the configuration on disk. It returns the options for checking mesh
// configuration as the agent does, and the paths of the agent's mesh configuration. meshConfig
// replaces the MeshConfig file of the configuration, unless it is "".
func (a *app) checkOptions(ctx context.Context,
	meshConfig string) (discovery.CheckOptions, []string, error) {
	loaded, err := config.Load(a.onDisk(nil))
	if err != nil {
		return discovery.CheckOptions{}, nil, err
	}
	node, from := loaded.Config.Node, loaded.Config.Discovery
	options := discovery.CheckOptions{NodeType: node.Type, Namespace: node.Namespace,
		Labels: node.Labels, HasMeshCertificate: loaded.Config.Identity.Provider != "none",
		MeshConfigFile: cmp.Or(meshConfig, from.MeshConfigFile),
		Credentials: discovery.CredentialLocation{Folder: loaded.Config.Identity.CredentialsDir,
			Socket: loaded.Config.Identity.CredentialsSDS}}
	for _, claim := range loaded.Config.Claims() {
		if claim.Port != 0 {
			options.ReservedAddresses = append(options.ReservedAddresses,
				discovery.ReservedAddress{Address: claim.Host,
					Port: uint32(claim.Port), Owner: claim.KeyWithTable() + " of the agent",
					IsEnvoys: claim.Envoy})
		}
	}
	options.FilesAreLocal = true
	// with capture, only the agent knows on which addresses applications accept connections
	if loaded.Config.Capture.Mode == "none" {
		options.ListenAddresses = sockdiag.ListeningAddresses()
	}
	options.TypedConfigs = bootstrap.NewTypedConfigChecker()
	options.EnvoyIsNewerThanAPI = sync.OnceValue(func() bool {
		return typedconfig.NewerThanLinkedAPI(envoyVersion(ctx, loaded.Config.Envoy.Binary))
	})
	if reader := a.unit(ctx, unitOf("outrider-envoy",
		a.instance)+".service").reader(); reader != nil {
		options.ProxyReadCheck = a.denied(reader)
	}
	if reader := a.unit(ctx, a.unitName()+".service").reader(); reader != nil {
		options.AgentReadCheck = a.denied(reader)
	}
	return options, from.Files, nil
}

// denied returns a discovery.ReadCheck that determines the permissions of the user reader. It sets
// a.unchecked if they cannot be determined.
func (a *app) denied(reader *blueprint.UserAccess) discovery.ReadCheck {
	return func(path string) string {
		if reader.IsUncheckable() {
			a.unchecked.Store(true)
		}
		return reader.ReadDenialReason(path)
	}
}

// envoyVersion returns the version of the Envoy that the agent would start; "": none was found.
func envoyVersion(ctx context.Context, binary string) string {
	path, err := envoy.Find(binary)
	if err != nil {
		return ""
	}
	found, err := envoy.Inspect(ctx, envoy.LocalRunner{}, path)
	if err != nil {
		return ""
	}
	return found.Version
}

// problemsOf converts problems that the agent's API returns.
func problemsOf(found []api.MeshProblem) []discovery.Problem {
	problems := make([]discovery.Problem, len(found))
	for i, p := range found {
		problems[i] = discovery.Problem{File: p.File, Line: p.Line, Object: p.Object,
			Field: p.Field, Severity: condition.Severity(p.Severity), Message: p.Message}
	}
	return problems
}

// withSeverity returns the number of problems with a severity.
func withSeverity(problems []discovery.Problem, severity condition.Severity) int {
	n := 0
	for _, p := range problems {
		if p.Severity == severity {
			n++
		}
	}
	return n
}

// printProblems prints the problems in files. compared has the differences to the resources that
// the agent serves; nil: they were not compared.
func (a *app) printProblems(paths []string, problems []discovery.Problem, compared *comparison,
	strict bool) error {
	bad := withSeverity(problems, condition.Error)
	warnings := withSeverity(problems, condition.Warning)
	var changes []api.MeshChange
	if compared != nil {
		changes = compared.changes
	}
	err := a.print(findings(problems, changes), func() {
		for _, p := range problems {
			fmt.Fprintf(a.err, "%s: %s\n", p.Severity, p)
		}
		result := "valid"
		if warnings > 0 {
			result += ", with " + count(warnings, "warning", "warnings")
		}
		if bad == 0 {
			fmt.Fprintf(a.out, "%s: %s\n", strings.Join(paths, ", "), result)
		}
	})
	if a.unchecked.Load() {
		fmt.Fprintln(a.err, "not checked: whether the users of the units can read the files; "+
			"only root can check it")
	}
	if compared != nil {
		a.printComparison(*compared)
	}
	return errors.Join(err, refusedIf(bad > 0 || strict && warnings > 0))
}
