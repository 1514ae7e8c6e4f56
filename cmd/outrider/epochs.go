package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) epochsCommand() *cobra.Command {
	return a.listing(a.watched(&cobra.Command{
		Use:   "epochs [NUMBER]...",
		Short: "List epochs: number, state, pid, age, connections, memory, exit",
		Long: "Epochs lists all epochs of Envoy, or those named. AGE is the time since the epoch started, or\n" +
			"since it exited; LIVED, with -o wide, is how long it ran.",
		ValidArgsFunction: a.completing(epochNumbers),
	}, func(s api.Status, named []string, encode func(value any) error) error {
		if len(named) > 0 {
			s.Epochs = slices.DeleteFunc(s.Epochs, func(e api.Epoch) bool {
				return !slices.Contains(named, fmt.Sprint(e.Number))
			})
		}
		if a.json {
			return encode(s.Epochs)
		}
		t := &table{
			head: []string{"EPOCH", "STATE", "PID", "AGE", "LIVED", "CONNECTIONS", "MEMORY", "MODE", "EXIT"},
			wide: []string{"LIVED", "MODE"},
		}
		for _, e := range s.Epochs {
			t.add(a.epochRow(e)...)
		}
		none := "no epoch yet"
		if len(named) > 0 {
			none = "no such epoch"
		}
		a.write(t, none)
		return nil
	}))
}

func (a *app) epochRow(e api.Epoch) []cell {
	aged, lived := a.since(e.Started), a.since(e.Started)
	connections, pid, exit := fmt.Sprint(e.Connections), fmt.Sprint(e.PID), "-"
	if e.State == api.EpochExited {
		connections, pid, exit = "-", "-", orDash(e.ExitCause)
		aged, lived = a.since(e.Exited), "-"
		if !e.Exited.IsZero() && !e.Started.IsZero() {
			lived = age(e.Exited.Sub(e.Started))
		}
	}
	return []cell{text("%d", e.Number), {string(e.State), epochStyle(e.State)}, text("%s", pid),
		text("%s", aged), text("%s", lived), text("%s", connections), text("%s", size(e.MemoryBytes)),
		text("%s", orDash(e.Mode)), text("%s", exit)}
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
