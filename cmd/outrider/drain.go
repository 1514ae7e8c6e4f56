package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) drainCommand() *cobra.Command {
	var request api.DrainRequest
	command := &cobra.Command{
		Use:   "drain",
		Short: "Stop taking new connections; abort nothing",
		Long: "Envoy fails its health checks at once, and closes its listeners after " +
			"drain_duration. The\n" +
			"mesh learns that the workload is unhealthy. New outbound connections go direct at\n" +
			"once, inbound ones after half of drain_duration: until then clients of the mesh may\n" +
			"not know. outrider undrain takes all of this back. A stop after a drain does not\n" +
			"wait for new connections again.",
		Args: cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			drain := func(ctx context.Context, tell func(api.Progress)) (api.DrainResult, error) {
				return client.Drain(ctx, request, tell)
			}
			result, err := withProgress(ctx, a, "draining", "", drain)
			if err != nil {
				return err
			}
			return a.print(result, func() {
				left := result.Unknown
				if left == "" {
					left = "no connection is left"
					if n := int(result.Connections); n > 0 {
						left = count(n, "connection is", "connections are") + " left"
					}
				}
				fmt.Fprintf(a.out, "draining; %s\n", left)
			})
		}),
	}
	command.Flags().BoolVar(&request.Wait, "wait", false,
		"return only when the listeners are closed and no connection is left")
	return command
}
