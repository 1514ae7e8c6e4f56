package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
)

func (a *app) reloadCommand() *cobra.Command {
	request := api.ReloadRequest{FromSystemctl: runBySystemd()}
	var flags nowFlags
	command := &cobra.Command{
		Use:   "reload",
		Short: "Reload the configuration and start a new epoch; returns once it is live",
		Long: "Reload does what SIGHUP does, but it waits: it returns once the new epoch is\n" +
			"live, and prints what changed. A reload that is refused changes nothing: the\n" +
			"reasons are on standard error, and the exit code is 1.\n\n" +
			"A broken file of the mesh does not refuse a reload: its objects stay as they\n" +
			"were, and the result and the journal name it. \"outrider mesh check\" fails.\n\n" +
			"While clients are connected to the epoch before the live one, a new epoch waits\n" +
			"for them, at most until parent_shutdown_duration is over. ^C leaves the reload to\n" +
			"the agent. With --now it aborts that epoch, once Envoy has accepted the new\n" +
			"configuration (see [reload] validate), and first says how many client connections\n" +
			"that ends; on a terminal it asks, elsewhere it needs --yes.",
		Example: "  outrider reload --now --yes",
		Args:    cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			reload := func(ctx context.Context, report func(api.Progress)) (api.ReloadResult, error) {
				return client.Reload(ctx, request, report)
			}
			var err error
			if request.AbortEpochs, err = a.aborts(ctx, client, flags); err != nil {
				return err
			}
			result, err := withProgress(ctx, a, "reloading", leaves("reload"), reload)
			if err != nil {
				return err
			}
			err = a.print(result, func() { a.printReload(result, request.FromSystemctl) })
			return errors.Join(err, refusedIf(result.Outcome == api.OutcomeRefused))
		}),
	}
	command.Flags().BoolVar(&request.IfChanged, "if-changed", false,
		"start an epoch only if something that needs one changed")
	flags.addTo(command)
	return command
}

// leaves returns a hint for the user: ^C ends the command, but the agent completes the operation.
func leaves(what string) string { return "^C leaves the " + what + " to the agent" }

// runBySystemd reports whether systemd runs the command as ExecReload= of a unit (systemd.exec(5)).
func runBySystemd() bool {
	return os.Getenv("MAINPID") != "" && os.Getenv("INVOCATION_ID") != ""
}

// printReload prints the changes and the outcome of a reload. A refusal and mesh problems go to
// standard error. logged means that the output goes to the journal. printReload then prints only
// mesh problems, because the agent has logged everything else.
func (a *app) printReload(r api.ReloadResult, logged bool) {
	if r.MeshProblemSummary != "" {
		defer fmt.Fprintln(a.err, "outrider: "+r.MeshProblemSummary+"; run \"outrider mesh "+
			"check\" for "+
			"details")
	}
	if logged {
		return
	}
	if r.Outcome == api.OutcomeRefused {
		serves := cmp.Or(continues(r.Epoch), continues(r.PreviousEpoch), "; no epoch is live")
		fmt.Fprintln(a.err, "outrider: reload refused"+serves)
		for _, reason := range r.Reasons {
			fmt.Fprintln(a.err, "  "+strings.ReplaceAll(reason, "\n", "\n  "))
		}
		return
	}
	for _, change := range r.Changes {
		fmt.Fprintln(a.out, changeLine(change))
	}
	for _, file := range r.ChangedFiles {
		fmt.Fprintln(a.out, file, "has changed")
	}
	switch {
	case r.Outcome == api.OutcomeRestarted && r.Epoch != nil && r.PreviousEpoch != nil:
		fmt.Fprintf(a.out, "epoch %d → %d (%s)\n", *r.PreviousEpoch, *r.Epoch,
			strings.Join(nonEmpty(r.StartMode, seconds(r.Duration), onRequest(r)), ", "))
	case r.Outcome == api.OutcomeRestarted && r.Epoch != nil:
		fmt.Fprintf(a.out, "epoch %d is live (%s)\n", *r.Epoch, seconds(r.Duration))
	case r.Outcome == api.OutcomeApplied:
		fmt.Fprintln(a.out, "applied in place"+continues(r.Epoch))
	default:
		fmt.Fprintln(a.out, "nothing changed"+continues(r.Epoch))
	}
	if r.Superseded {
		fmt.Fprintln(a.out, "a newer configuration has taken effect meanwhile")
	}
	if len(r.KeysPendingRestart) > 0 {
		fmt.Fprintln(a.out, "takes effect at the next start of the agent:",
			strings.Join(r.KeysPendingRestart, ", "))
	}
}

// onRequest returns the remark of a reload that started an epoch only because the user requested
// one; "" if a changed key needed the epoch or none was started.
func onRequest(r api.ReloadResult) string {
	if !r.StartedUnneededEpoch {
		return ""
	}
	return "on request: no change needs it"
}

func continues(epoch *int) string {
	if epoch == nil {
		return ""
	}
	return fmt.Sprintf("; epoch %d continues serving", *epoch)
}

func seconds(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// changeLine formats a changed key, its values and its effect.
func changeLine(c api.Change) string {
	effects := map[config.Effect]string{
		config.Live: "applied in place", config.Epoch: "new epoch", config.Start: "at the next start",
	}
	return fmt.Sprintf("%s: %s → %s (%s)", c.Key, cmp.Or(c.Old, "(none)"), cmp.Or(c.New, "(none)"),
		cmp.Or(effects[c.Effect], string(c.Effect)))
}
