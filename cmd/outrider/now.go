package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

// nowFlags are the flags --now and --yes of commands that may start an epoch.
type nowFlags struct{ now, yes bool }

func (f *nowFlags) addTo(command *cobra.Command) {
	command.Flags().BoolVar(&f.now, "now", false,
		"abort an epoch that still drains instead of waiting for its clients")
	command.Flags().BoolVar(&f.yes, "yes", false, "with --now: do not ask")
}

// aborts returns the numbers of the draining epochs to abort; none without --now. It prints how
// many connections that closes, and requests confirmation unless flags.yes is set.
func (a *app) aborts(ctx context.Context, client *api.Client, flags nowFlags) ([]int, error) {
	if flags.yes && !flags.now {
		return nil, usagef("--yes is for --now")
	}
	if !flags.now {
		return nil, nil
	}
	status, err := client.Status(ctx)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range status.Epochs {
		if e.State == api.EpochDraining {
			numbers = append(numbers, e.Number)
			fmt.Fprintf(a.err, "epoch %d still drains: --now ends %s\n", e.Number,
				count(int(e.Connections), "client connection", "client connections"))
		}
	}
	if len(numbers) == 0 || flags.yes {
		return numbers, nil
	}
	return numbers, a.confirm(ctx)
}

// confirm asks the user on the terminal whether to continue. It returns an error unless the answer
// is yes.
func (a *app) confirm(ctx context.Context) error {
	if a.in == nil {
		return usagef("standard input is no terminal to ask on; add --yes")
	}
	fmt.Fprint(a.err, "Continue? [y/N] ")
	answered := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.LimitReader(a.in, 80)).ReadString('\n')
		answered <- line
	}()
	select {
	case line := <-answered:
		if answer := strings.ToLower(strings.TrimSpace(line)); answer == "y" || answer == "yes" {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(a.err)
	}
	return errors.New("not confirmed; nothing was done")
}
