package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

// showStatus prints what a command shows of a status; encode prints a value as JSON.
type showStatus = func(s api.Status, arguments []string, encode func(value any) error) error

// watched makes a command of one that shows the agent's status, once or with --watch over and over.
// show prints with a.out, and JSON with encode.
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

// watch shows the status until ctx ends: in place on a terminal, elsewhere whenever what is shown
// changed.
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
			fmt.Fprint(out, "\x1b[H\x1b[2J", now) // cursor home, clear
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
