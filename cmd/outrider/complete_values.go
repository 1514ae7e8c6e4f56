package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
)

// completeTime bounds the requests to the agent for one shell completion.
const completeTime = 2 * time.Second

// completion is a function that completes the arguments of a command.
type completion = cobra.CompletionFunc

// completing returns a completion with the values that query requests from the agent. Without a
// running agent it offers none.
func (a *app) completing(query func(ctx context.Context, client *api.Client) []string) completion {
	return func(command *cobra.Command, arguments []string, word string) (
		[]string, cobra.ShellCompDirective,
	) {
		ctx, cancel := context.WithTimeout(command.Context(), completeTime)
		defer cancel()
		client := a.client()
		defer client.Close()
		var found []string
		for _, value := range query(ctx, client) {
			if strings.HasPrefix(value, word) && !slices.Contains(arguments, value) {
				found = append(found, value)
			}
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// instances completes the names of the agent instances that have a configuration file.
func (a *app) instances(_ *cobra.Command, _ []string, word string) (
	[]string, cobra.ShellCompDirective,
) {
	all, err := config.Instances(a.paths.configuration)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all = slices.DeleteFunc(all, func(name string) bool {
		return name == "" || !strings.HasPrefix(name, word)
	})
	return all, cobra.ShellCompDirectiveNoFileComp
}

func epochNumbers(ctx context.Context, client *api.Client) []string {
	status, err := client.Status(ctx)
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range status.Epochs {
		all = append(all, fmt.Sprint(e.Number))
	}
	return all
}

func clusterNames(ctx context.Context, client *api.Client) []string {
	status, err := clusterStatuses(ctx, client)
	if err != nil {
		return nil
	}
	var all []string
	for _, c := range status.Clusters {
		all = append(all, c.Name)
	}
	return all
}

// levels completes the arguments agent=LEVEL, envoy=LEVEL and envoy:COMPONENT=LEVEL.
func (a *app) levels(command *cobra.Command, arguments []string, word string) (
	[]string, cobra.ShellCompDirective,
) {
	logger, _, isSet := strings.Cut(word, "=")
	if isSet {
		candidates := config.EnvoyLogLevels()
		if logger == "agent" {
			candidates = config.AgentLogLevels()
		}
		for i := range candidates {
			candidates[i] = logger + "=" + candidates[i]
		}
		fixed := a.completing(func(context.Context, *api.Client) []string { return candidates })
		return fixed(command, arguments, word)
	}
	found, directive := a.completing(func(ctx context.Context, client *api.Client) []string {
		all := []string{"agent=", "envoy="}
		if !strings.HasPrefix(word, "envoy:") {
			return append(all, "envoy:")
		}
		levels, err := client.LogLevels(ctx)
		if err != nil {
			return all
		}
		for _, component := range slices.Sorted(maps.Keys(levels.Components)) {
			all = append(all, "envoy:"+component+"=")
		}
		return all
	})(command, arguments, word)
	return found, directive | cobra.ShellCompDirectiveNoSpace
}
