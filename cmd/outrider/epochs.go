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
		Long: "Epochs lists all epochs of Envoy, or those named. AGE is the time since the\n" +
			"epoch started, or since it exited; LIVED, with -o wide, is how long it ran.",
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
			head: []string{"EPOCH", "STATE", "PID", "AGE", "LIVED", "CONNECTIONS", "MEMORY", "MODE",
				"EXIT"},
			wide: []string{"LIVED", "MODE"},
		}
		for _, e := range s.Epochs {
			a.addEpoch(t, e)
		}
		none := "no epoch yet"
		if len(named) > 0 {
			none = "no such epoch"
		}
		a.write(t, none)
		return nil
	}))
}

func (a *app) addEpoch(t *table, e api.Epoch) {
	aged, lived := a.since(e.Started), a.since(e.Started)
	connections, pid, exit := fmt.Sprint(e.Connections), fmt.Sprint(e.PID), ""
	if e.State == api.EpochExited {
		connections, pid, exit = "", "", e.ExitCause
		aged, lived = a.since(e.Exited), ""
		if !e.Exited.IsZero() && !e.Started.IsZero() {
			lived = age(e.Exited.Sub(e.Started))
		}
	}
	t.add(e.Number, cell{string(e.State), epochStyle(e.State)}, pid, aged, lived, connections,
		size(e.MemoryBytes), string(e.Mode), exit)
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
