package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undrain",
		Short: "Restore service after a drain; returns once a new epoch takes connections",
		Long: "Undrain cancels a drain. Envoy itself cannot, so that a new epoch of the\n" +
			"configuration in force replaces the one that drains. It returns once that epoch\n" +
			"is live. An undrain that fails changes nothing: the epoch continues to drain.",
		Args: cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			r, err := withProgress(ctx, a, "starting a new epoch", leaves("undrain"),
				client.Undrain)
			if err != nil {
				return err
			}
			return a.print(r, func() {
				switch {
				case r.PreviousEpoch == nil:
					fmt.Fprintf(a.out, "no longer draining; epoch %d is live (%s)\n",
						r.Epoch, seconds(r.Duration))
				case r.Epoch == *r.PreviousEpoch:
					fmt.Fprintf(a.out, "nothing to do; epoch %d does not drain\n", r.Epoch)
				default:
					fmt.Fprintf(a.out, "no longer draining; epoch %d → %d (%s)\n", *r.PreviousEpoch,
						r.Epoch, strings.Join(nonEmpty(r.StartMode, seconds(r.Duration)), ", "))
				}
			})
		}),
	}
}
