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
		Args:  cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			drain := func(ctx context.Context, tell func(api.Progress)) (api.DrainResult, error) {
				return client.Drain(ctx, request, tell)
			}
			result, err := withProgress(ctx, a, "draining", drain)
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
