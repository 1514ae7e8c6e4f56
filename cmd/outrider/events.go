package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
)

func (a *app) eventsCommand() *cobra.Command {
	var last int
	var once bool
	command := &cobra.Command{
		Use:   "events",
		Short: "Follow what the agent does, one line each",
		Args:  cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			if last < 0 {
				return usagef("--last %d is negative", last)
			}
			return a.events(ctx, client, last, !once)
		}),
	}
	command.Flags().IntVarP(&last, "last", "n", 10, "begin with this `number` of past events")
	command.Flags().BoolVar(&once, "no-follow", false, "print past events only")
	return command
}

func (a *app) events(ctx context.Context, client *api.Client, last int, stream bool) error {
	var before []condition.Event
	err := client.Events(ctx, 0, false, func(event condition.Event) error {
		before = append(before, event)
		return nil
	})
	if err != nil {
		return err
	}
	var sequence uint64
	if len(before) > 0 {
		sequence = before[len(before)-1].Sequence
	}
	for _, event := range before[max(0, len(before)-last):] {
		if err := a.printEvent(event); err != nil {
			return err
		}
	}
	if !stream {
		return nil
	}
	err = client.Events(ctx, sequence, true, func(event condition.Event) error {
		if missed := event.Sequence - sequence - 1; sequence > 0 && event.Sequence > sequence+1 {
			fmt.Fprintf(a.err, "outrider: %s lost: this terminal is too slow\n",
				count(int(missed), "event was", "events were"))
		}
		sequence = event.Sequence
		return a.printEvent(event)
	})
	switch {
	case errors.Is(err, context.Canceled):
		return nil
	case err == nil:
		return errors.New("the agent has exited")
	}
	return err
}

func (a *app) printEvent(event condition.Event) error {
	if a.json {
		return a.printLine(event)
	}
	about := ""
	if event.Epoch != nil {
		about = fmt.Sprintf("epoch %d: ", *event.Epoch)
		if strings.HasPrefix(event.Sentence, fmt.Sprintf("epoch %d ", *event.Epoch)) {
			about = ""
		}
	}
	_, err := fmt.Fprintf(a.out, "%s  %s  %s%s\n",
		a.paint(cell{event.Time.Local().Format("15:04:05.000"), dim}),
		a.paint(cell{event.Kind, eventStyle(event.Kind)}), about,
		strings.ReplaceAll(event.Sentence, "\n", "; "))
	return err
}

func eventStyle(kind string) style {
	switch kind {
	case condition.KindEpochLive:
		return green
	case condition.KindReloadRefused, condition.KindResourcesRefused, condition.KindRestartsExhausted:
		return red
	case condition.KindConditionRaised, condition.KindMeshProblem, condition.KindDraining,
		condition.KindStopping:
		return yellow
	}
	return bold
}
