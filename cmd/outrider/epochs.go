package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) epochsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "epochs",
		Short: "Each epoch: number, state, pid, age, connections, memory, exit",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			status, err := client.Status(command.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(status.Epochs)
			}
			t := &table{head: []string{"EPOCH", "STATE", "PID", "AGE", "CONNECTIONS", "MEMORY", "MODE", "EXIT"}}
			for _, e := range status.Epochs {
				t.add(a.epochRow(e)...)
			}
			a.write(t, "no epoch yet")
			return nil
		},
	}
}

func (a *app) epochRow(e api.Epoch) []cell {
	lived, connections, pid := a.since(e.Started), fmt.Sprint(e.Connections), fmt.Sprint(e.PID)
	if e.State == api.EpochExited {
		connections, pid = "-", "-"
		if !e.Exited.IsZero() && !e.Started.IsZero() {
			lived = age(e.Exited.Sub(e.Started))
		}
	}
	exit := "-"
	if e.State == api.EpochExited {
		exit = orDash(e.ExitCause)
		if !e.Exited.IsZero() {
			exit += fmt.Sprintf(", %s ago", a.since(e.Exited))
		}
	}
	return []cell{text("%d", e.Number), {string(e.State), epochStyle(e.State)}, text("%s", pid), text("%s", lived),
		text("%s", connections), text("%s", size(e.MemoryBytes)), text("%s", orDash(e.Mode)), text("%s", exit)}
}

func epochStyle(state api.EpochState) style {
	switch state {
	case api.EpochLive:
		return green
	case api.EpochExited:
		return dim
	}
	return yellow
}
