package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) logLevelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "log-level [agent=LEVEL] [envoy=LEVEL] [envoy:COMPONENT=LEVEL]...",
		Short: "Show or set log levels, live",
		Long: "Log-level shows or sets log levels, live. It lists only those of Envoy's\n" +
			"components whose level differs from Envoy's own.",
		Example:           "  outrider log-level agent=debug envoy=info envoy:http=trace",
		ValidArgsFunction: a.levels,
		RunE: a.asking(func(ctx context.Context, client *api.Client, arguments []string) error {
			wanted, err := parseLevels(arguments)
			if err != nil {
				return err
			}
			var levels api.LogLevels
			if len(arguments) == 0 {
				levels, err = client.LogLevels(ctx)
			} else {
				levels, err = client.SetLogLevels(ctx, wanted)
			}
			if err != nil {
				return err
			}
			return a.print(levels, func() { a.printLevels(levels) })
		}),
	}
}

func (a *app) printLevels(levels api.LogLevels) {
	t := &table{head: []string{"LOGGER", "LEVEL"}}
	t.add("agent", levels.Agent)
	t.add("envoy", levels.Envoy)
	for _, component := range slices.Sorted(maps.Keys(levels.Components)) {
		// Envoy has about 80 components: only those with another level than Envoy's are printed.
		// --json prints all.
		if levels.Components[component] != levels.Envoy {
			t.add("envoy:"+component, levels.Components[component])
		}
	}
	a.write(t, "")
}

func parseLevels(arguments []string) (api.LogLevels, error) {
	var levels api.LogLevels
	for _, argument := range arguments {
		logger, level, ok := strings.Cut(argument, "=")
		component, isComponent := strings.CutPrefix(logger, "envoy:")
		switch {
		case !ok || level == "":
			return levels, usagef("%q is not LOGGER=LEVEL", argument)
		case logger == "agent":
			levels.Agent = level
		case logger == "envoy":
			levels.Envoy = level
		case isComponent && component != "":
			if levels.Components == nil {
				levels.Components = map[string]string{}
			}
			levels.Components[component] = level
		default:
			return levels, usagef("unknown logger %q: use agent, envoy or envoy:COMPONENT", logger)
		}
	}
	return levels, nil
}
