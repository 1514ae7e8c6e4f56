package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undrain",
		Short: "Restore service after a drain; returns once a new epoch takes connections",
		Long: "Undrain takes a drain back. Envoy itself cannot, so that a new epoch of the configuration in force replaces the\n" +
			"one that drains. It returns once that epoch is live. An undrain that fails changes nothing: the epoch drains on.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			shown := a.startProgress("starting a new epoch")
			defer shown.end()
			result, err := client.Undrain(command.Context(), shown.tell)
			shown.end()
			switch {
			case err != nil:
				return err
			case a.json:
				return a.printJSON(result)
			case result.Previous == nil:
				fmt.Fprintf(a.out, "no longer draining; epoch %d is live (%s)\n", result.Epoch, seconds(result.Duration))
			case result.Epoch == *result.Previous:
				fmt.Fprintf(a.out, "nothing to do; epoch %d does not drain\n", result.Epoch)
			default:
				fmt.Fprintf(a.out, "no longer draining; epoch %d → %d (%s)\n", *result.Previous, result.Epoch,
					strings.Join(nonEmpty(result.Mode, seconds(result.Duration)), ", "))
			}
			return nil
		},
	}
}
