package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) drainCommand() *cobra.Command {
	var wait bool
	command := &cobra.Command{
		Use:   "drain",
		Short: "Stop taking new connections; abort nothing",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			shown := a.startProgress("draining")
			defer shown.end()
			result, err := client.Drain(command.Context(), api.DrainRequest{Wait: wait}, shown.tell)
			shown.end()
			if err != nil {
				return err
			}
			switch {
			case a.json:
				return a.printJSON(result)
			case result.Unknown != "":
				fmt.Fprintf(a.out, "draining; %s\n", result.Unknown)
			case result.Connections == 0:
				fmt.Fprintln(a.out, "draining; no connection is left")
			default:
				fmt.Fprintf(a.out, "draining; %s left\n", count(int(result.Connections), "connection is", "connections are"))
			}
			return nil
		},
	}
	command.Flags().BoolVar(&wait, "wait", false, "return only when the listeners are closed and no connection is left")
	return command
}
