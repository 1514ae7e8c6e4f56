package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

// pollInterval is the interval between requests to an agent that is not ready yet.
const pollInterval = 100 * time.Millisecond

func (a *app) waitCommand() *cobra.Command {
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "wait",
		Short: "Return when the proxy is ready",
		Long: "Wait returns when the proxy is ready: Envoy is live and has its configuration.\n" +
			"Wait also waits for an agent that does not run yet. After the timeout the exit\n" +
			"code is 1 with the reason, 3 if the agent does not run.",
		Args: cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			if timeout < 0 {
				return usagef("--timeout %s is negative", timeout)
			}
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			wait := func(ctx context.Context, report func(api.Progress)) (api.WaitResult, error) {
				return untilReady(ctx, client, report)
			}
			result, err := withProgress(ctx, a, "waiting for the agent", "", wait)
			switch {
			case err != nil:
				return err
			case !a.json && !result.Ready:
				return errors.New(result.Reason)
			}
			err = a.print(result, func() { fmt.Fprintln(a.out, "ready") })
			return errors.Join(err, refusedIf(!result.Ready))
		}),
	}
	command.Flags().DurationVar(&timeout, "timeout", time.Minute,
		"give up after this `duration`; 0 = never")
	return command
}

// untilReady waits until the proxy is ready or ctx ends, across restarts of the agent.
func untilReady(
	ctx context.Context, client *api.Client, report func(api.Progress),
) (api.WaitResult, error) {
	reason := ""
	for {
		result, err := client.WaitReady(ctx, func(p api.Progress) {
			reason = p.Phase
			report(p)
		})
		if err == nil && result.Ready {
			return result, nil
		}
		_, absent := errors.AsType[*api.NotRunningError](err)
		if ctx.Err() != nil {
			ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
			switch {
			case !absent && reason != "":
				return api.WaitResult{Reason: "the proxy is not ready: " + reason}, nil
			case !absent && ended:
				return api.WaitResult{}, silence(ctx, client)
			}
			return result, err
		}
		if refused, ok := errors.AsType[*api.Error](err); ok && refused.Status == 403 {
			return result, err
		}
		if absent {
			reason = ""
			report(api.Progress{Phase: "waiting for the agent to start"})
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			if absent {
				return result, err
			}
		}
	}
}

// silence returns the error of `outrider wait` if ctx ended before the agent's first response.
// Another request determines whether the agent runs.
func silence(ctx context.Context, client *api.Client) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, err := client.Status(ctx)
	if _, absent := errors.AsType[*api.NotRunningError](err); absent {
		return err
	}
	return errors.New("the agent did not answer in time")
}
