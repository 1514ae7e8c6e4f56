package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) drainCommand() *cobra.Command {
	var request api.DrainRequest
	command := &cobra.Command{
		Use:   "drain",
		Short: "Stop taking new connections; abort nothing",
		Long: "Envoy fails its health checks at once: port 15021 and /healthz/ready answer 503, " +
			"so that a load balancer in front of it sends requests elsewhere. It goes on " +
			"answering requests, those of new connections too, asks clients to close theirs " +
			"(Connection: close, GOAWAY), and closes its listeners after drain_duration; from " +
			"then on connections are refused. Requests that are in flight end; nothing is " +
			"aborted, and idle connections may stay. An edge proxy without a load balancer " +
			"therefore answers 200 until its listeners close.\n\n" +
			"In a mesh, other proxies learn that the workload is unhealthy. With interception, " +
			"new outbound connections go direct at once, inbound ones after half of " +
			"drain_duration: until then clients of the mesh may not know.\n\n" +
			"\"outrider undrain\" takes all of this back. A stop after a drain does not wait " +
			"for new connections again.",
		Args: cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			drain := func(ctx context.Context, report func(api.Progress)) (api.DrainResult, error) {
				return client.Drain(ctx, request, report)
			}
			result, err := withProgress(ctx, a, "draining", "", drain)
			if err != nil {
				return err
			}
			return a.print(result, func() {
				left := result.UncountedReason
				if left == "" {
					left = "no client connection is left"
					if n := int(result.Connections); n > 0 {
						left = count(n, "client connection is", "client connections are") + " left"
					}
				}
				if !result.Until.IsZero() {
					left += "; new ones are accepted until " + result.Until.Format(time.TimeOnly) +
						", when the listeners close"
				}
				fmt.Fprintf(a.out, "draining; %s\n", left)
			})
		}),
	}
	command.Flags().BoolVar(&request.Wait, "wait", false,
		"return only when the listeners are closed and no client connection is left")
	return command
}
