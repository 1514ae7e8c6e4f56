package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) undrainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "undrain",
		Short: "Take a drain back (listeners that have closed return with the next epoch)",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			if err := client.Undrain(command.Context()); err != nil {
				return err
			}
			if a.json {
				return a.printJSON(struct{}{})
			}
			fmt.Fprintln(a.out, "no longer draining")
			return nil
		},
	}
}
