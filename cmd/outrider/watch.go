package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

// showStatus prints the fields of the status that a command shows. It calls encode to print JSON.
type showStatus = func(s api.Status, arguments []string, encode func(value any) error) error

// watched adds the flag --watch to a command that prints the agent's status. Without the flag, the
// command prints the status once.
func (a *app) watched(command *cobra.Command, show showStatus) *cobra.Command {
	var watch bool
	command.Flags().BoolVarP(&watch, "watch", "w", false, "refresh every second until interrupted")
	command.RunE = func(command *cobra.Command, arguments []string) error {
		client := a.client()
		defer client.Close()
		if watch {
			return a.watch(command.Context(), client, func(s api.Status) error {
				return show(s, arguments, a.printLine)
			})
		}
		status, err := client.Status(command.Context())
		if err != nil {
			return err
		}
		return show(status, arguments, a.printJSON)
	}
	return command
}

// watch prints the status until ctx ends: on a terminal repeatedly, in place; elsewhere after each
// change.
func (a *app) watch(ctx context.Context, client *api.Client, show func(api.Status) error) error {
	out := a.out
	defer func() { a.out = out }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var before string
	for {
		status, err := client.Status(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var screen bytes.Buffer
		a.out = &screen
		err = show(status)
		a.out = out
		if err != nil {
			return err
		}
		switch now := screen.String(); {
		case a.width > 0 && !a.json:
			control(out, clearScreen)
			fmt.Fprint(out, now)
		case now != before:
			fmt.Fprint(out, now)
			before = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
