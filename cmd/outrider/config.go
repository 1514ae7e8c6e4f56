package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/config"
)

func (a *app) configCommand() *cobra.Command {
	return group("config", "Check, show and compare the configuration",
		a.configCheckCommand(), a.configShowCommand(), a.configDiffCommand(), a.configDefaultsCommand())
}

func (a *app) configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file and its drop-ins, without an agent",
		Args:  cobra.MaximumNArgs(1),
		Long: "Check does what a start does before Envoy runs: it reads the configuration and the files that it names, renders the\n" +
			"bootstrap, and has Envoy validate it (as root with the rights of [envoy] user). The configuration of a systemd unit\n" +
			"is checked for the users of the units: an error here is an error of \"systemctl start\". A file that does not exist\n" +
			"yet, and that a start waits for, is a warning.",
		RunE: func(command *cobra.Command, arguments []string) error {
			options, checker := a.onDisk(arguments), blueprint.Checker{Maker: a.maker}
			if options.Path == "" {
				a.inUnit(command.Context(), &options, &checker)
			}
			report := blueprint.Check(command.Context(), options, checker)
			result := checkResult{OK: len(report.Errors) == 0, Warnings: sentences(report.Warnings), Errors: sentences(report.Errors)}
			if result.OK {
				result.Files = report.Files
			}
			return a.printCheck(result)
		},
	}
}

// inUnit has a configuration checked as the one of a unit of systemd, if that is installed.
func (a *app) inUnit(ctx context.Context, options *config.Options, checker *blueprint.Checker) {
	agent := a.unit(ctx, unitOf("outrider", options.Instance)+".service")
	if agent.User == "" {
		return
	}
	options.InUnit = true
	checker.Agent, checker.Envoy = agent.reader(), a.unit(ctx, unitOf("outrider-envoy", options.Instance)+".service").reader()
}

// onDisk is the configuration that the arguments name.
func (a *app) onDisk(arguments []string) config.Options {
	options := config.Options{Instance: a.instance, Directory: a.places.configuration, CheckOnly: true}
	if len(arguments) > 0 {
		options = options.Of(arguments[0])
	}
	return options
}

// checkResult is what a check found.
type checkResult struct {
	OK       bool     `json:"ok"`
	Files    []string `json:"files,omitempty"`
	Errors   []string `json:"errors,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

func (a *app) printCheck(result checkResult) error {
	if a.json {
		if err := a.printJSON(result); err != nil {
			return err
		}
	} else {
		for _, problem := range result.Errors {
			fmt.Fprintln(a.err, problem)
		}
		for _, warning := range result.Warnings {
			fmt.Fprintln(a.err, "warning:", warning)
		}
		for _, file := range result.Files {
			fmt.Fprintln(a.out, file+": valid")
		}
	}
	if !result.OK {
		return silentError{api.ExitRefused}
	}
	return nil
}

func sentences(errs config.Errors) []string {
	var all []string
	for _, one := range errs {
		all = append(all, one.Error())
	}
	return all
}

func (a *app) configShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the effective configuration, with the source of each value",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			shown, err := client.Config(command.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printConfig(shown)
			}
			fmt.Fprint(a.out, shown.Text)
			return nil
		},
	}
}

// printConfig prints a configuration as JSON, its values as tables within tables too.
func (a *app) printConfig(shown api.Config) error {
	var values []config.Value
	for _, v := range shown.Values {
		values = append(values, config.Value{Key: v.Key, Text: v.Value})
	}
	nested, err := config.Nested(values)
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
		Long: "Diff prints what a reload would change and how. If what is on disk would be refused, the reasons are on standard error and\n" +
			"the exit code is 1.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			diff, err := client.ConfigDiff(command.Context())
			if err != nil {
				return err
			}
			if a.json {
				if err := a.printJSON(diff); err != nil {
					return err
				}
			} else {
				for _, problem := range diff.Errors {
					fmt.Fprintln(a.err, problem)
				}
				for _, change := range diff.Changes {
					fmt.Fprintln(a.out, changeLine(change))
				}
				if len(diff.Changes)+len(diff.Errors) == 0 {
					fmt.Fprintln(a.out, "no difference")
				}
			}
			if len(diff.Errors) > 0 {
				return silentError{api.ExitRefused}
			}
			return nil
		},
	}
}

func (a *app) configDefaultsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "defaults",
		Short: "Print a file of all keys with their defaults and explanations",
		Long: "Defaults prints a configuration file of all keys with their defaults and explanations. With --json it is the text,\n" +
			"beside a list of all keys and their defaults.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(defaultsInJSON())
			}
			fmt.Fprint(a.out, config.Defaults())
			return nil
		},
	}
}

// shownDefaults are the defaults as config show has what is in force.
type shownDefaults struct {
	Text   string            `json:"text"`
	Values []api.ConfigValue `json:"values"`
}

func defaultsInJSON() shownDefaults {
	shown := shownDefaults{Text: config.Defaults()}
	for _, value := range config.DefaultValues() {
		shown.Values = append(shown.Values, api.ConfigValue{Key: value.Key, Value: value.Text, Source: value.Source})
	}
	return shown
}
