package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Check, show and compare the configuration",
		a.configCheckCommand(), a.configShowCommand(), a.configDiffCommand(),
		a.configDefaultsCommand())
}

func (a *app) configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file and its drop-ins, without an agent",
		Args:  cobra.MaximumNArgs(1),
		Long: "Check does what a start does before Envoy runs: it reads the configuration and\n" +
			"the files that it names, renders the bootstrap, and has Envoy validate it (as\n" +
			"root with the rights of [envoy] user). The configuration of a systemd unit is\n" +
			"checked for the users of the units: an error here is an error of \"systemctl\n" +
			"start\". A file that does not exist yet, and that a start waits for, is a\n" +
			"warning.",
		RunE: func(command *cobra.Command, arguments []string) error {
			options, checker := a.onDisk(arguments), blueprint.CheckOptions{Builder: a.maker}
			if options.Path == "" {
				a.inUnit(command.Context(), &options, &checker)
			}
			report := blueprint.Check(command.Context(), options, checker)
			result := checkResult{OK: len(report.Errors) == 0,
				Warnings: config.ErrorLines(report.Warnings), Errors: config.ErrorLines(report.Errors)}
			if result.OK {
				result.Files = report.Files
			}
			return a.printCheck(result)
		},
	}
}

// inUnit makes path checks apply the users and the sandboxing of the systemd units of agent and
// keeper, if the agent's unit is installed.
func (a *app) inUnit(ctx context.Context, options *config.Options,
	checker *blueprint.CheckOptions) {
	agent := a.unit(ctx, unitOf("outrider", options.Instance)+".service")
	if agent.User == "" {
		return
	}
	options.RunsInUnit = true
	keeper := a.unit(ctx, unitOf("outrider-envoy", options.Instance)+".service")
	checker.AgentUser, checker.EnvoyUser = agent.reader(), keeper.reader()
}

// onDisk returns the options to read the configuration on disk: the file in arguments, if there is
// one, else that of the agent instance.
func (a *app) onDisk(arguments []string) config.Options {
	options := config.Options{Instance: a.instance, ConfigDirectory: a.paths.configuration,
		CheckOnly: true}
	if len(arguments) > 0 {
		options = options.WithMainFile(arguments[0])
	}
	return options
}

// checkResult is the JSON output of `outrider config check`.
type checkResult struct {
	OK       bool     `json:"ok"`
	Files    []string `json:"files,omitempty"`
	Errors   []string `json:"errors,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

func (a *app) printCheck(result checkResult) error {
	err := a.print(result, func() {
		for _, problem := range result.Errors {
			fmt.Fprintln(a.err, problem)
		}
		for _, warning := range result.Warnings {
			fmt.Fprintln(a.err, "warning:", warning)
		}
		for _, file := range result.Files {
			fmt.Fprintln(a.out, file+": valid")
		}
	})
	return errors.Join(err, refusedIf(!result.OK))
}

func (a *app) configShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the effective configuration, with the source of each value",
		Args:  cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			shown, err := client.Config(ctx)
			if err != nil {
				return err
			}
			if a.json {
				return a.printConfig(shown)
			}
			fmt.Fprint(a.out, shown.Text)
			return nil
		}),
	}
}

// printConfig prints a configuration: its values as nested tables or, with --json, as JSON.
func (a *app) printConfig(shown api.Config) error {
	nested, err := config.NestedTables(shown.Values)
	if err != nil {
		return err
	}
	return a.printJSON(struct {
		Nested map[string]any `json:"config"`
		api.Config
	}{nested, shown})
}

func (a *app) configDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff",
		Short: "Compare the configuration on disk with the one in effect",
		Long: "Diff prints what a reload would change and how. If what is on disk would be\n" +
			"refused, the reasons are on standard error and the exit code is 1.",
		Args: cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			diff, err := client.ConfigDiff(ctx)
			if err != nil {
				return err
			}
			err = a.print(diff, func() {
				for _, problem := range diff.Errors {
					fmt.Fprintln(a.err, problem)
				}
				for _, change := range diff.Changes {
					fmt.Fprintln(a.out, changeLine(change))
				}
				if len(diff.Changes)+len(diff.Errors) == 0 {
					fmt.Fprintln(a.out, "no difference")
				}
			})
			return errors.Join(err, refusedIf(len(diff.Errors) > 0))
		}),
	}
}

func (a *app) configDefaultsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "defaults",
		Short: "Print a file of all keys with their defaults and explanations",
		Long: "Defaults prints a configuration file of all keys with their defaults and\n" +
			"explanations. With --json it is the text, beside a list of all keys and their\n" +
			"defaults.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			shown := struct {
				Text   string         `json:"text"`
				Values []config.Value `json:"values"`
			}{config.DefaultsTOML(), config.DefaultValues()}
			return a.print(shown, func() { fmt.Fprint(a.out, shown.Text) })
		},
	}
}
