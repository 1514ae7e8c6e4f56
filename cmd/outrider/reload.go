package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) reloadCommand() *cobra.Command {
	var ifChanged bool
	command := &cobra.Command{
		Use:   "reload",
		Short: "Reload the configuration and start a new epoch; returns once it is live",
		Long: "Reload does what SIGHUP does, but it waits: it returns once the new epoch is live, and prints what changed.\n" +
			"A reload that is refused changes nothing: the reasons are on standard error, and the exit code is 1.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client := a.client()
			defer client.Close()
			shown := a.startProgress("reloading")
			defer shown.end()
			request := api.ReloadRequest{IfChanged: ifChanged, Systemctl: runBySystemd()}
			result, err := client.Reload(command.Context(), request, shown.tell)
			shown.end()
			if err != nil {
				return err
			}
			if a.json {
				if err := a.printJSON(result); err != nil {
					return err
				}
			} else {
				a.printReload(result, request.Systemctl)
			}
			if result.Outcome == api.OutcomeRefused {
				return silentError{api.ExitRefused}
			}
			return nil
		},
	}
	command.Flags().BoolVar(&ifChanged, "if-changed", false, "start an epoch only if something that needs one changed")
	return command
}

// runBySystemd reports whether the command is ExecReload= of a unit (systemd.exec(5)).
func runBySystemd() bool {
	return os.Getenv("MAINPID") != "" && os.Getenv("INVOCATION_ID") != ""
}

// printReload prints what changed and the outcome; a refusal, and what is wrong with the mesh
// configuration, go to standard error. If it is logged, in the same journal, only the latter is new.
func (a *app) printReload(r api.ReloadResult, logged bool) {
	if r.Mesh != "" {
		defer fmt.Fprintln(a.err, "outrider: "+r.Mesh+"; run \"outrider mesh check\" for details")
	}
	if logged {
		return
	}
	if r.Outcome == api.OutcomeRefused {
		serves := "no epoch is live"
		if r.Epoch != nil {
			serves = fmt.Sprintf("epoch %d continues serving", *r.Epoch)
		} else if r.Previous != nil {
			serves = fmt.Sprintf("epoch %d continues serving", *r.Previous)
		}
		fmt.Fprintf(a.err, "outrider: reload refused; %s\n", serves)
		for _, reason := range r.Reasons {
			fmt.Fprintln(a.err, "  "+strings.ReplaceAll(reason, "\n", "\n  "))
		}
		return
	}
	for _, change := range r.Changes {
		fmt.Fprintln(a.out, changeLine(change))
	}
	for _, file := range r.Files {
		fmt.Fprintln(a.out, file, "has changed")
	}
	switch {
	case r.Outcome == api.OutcomeRestarted && r.Epoch != nil && r.Previous != nil:
		fmt.Fprintf(a.out, "epoch %d → %d (%s)\n", *r.Previous, *r.Epoch, strings.Join(nonEmpty(r.Mode, seconds(r.Duration)), ", "))
	case r.Outcome == api.OutcomeRestarted && r.Epoch != nil:
		fmt.Fprintf(a.out, "epoch %d is live (%s)\n", *r.Epoch, seconds(r.Duration))
	case r.Outcome == api.OutcomeApplied:
		fmt.Fprintln(a.out, "applied in place"+goesOn(r.Epoch))
	default:
		fmt.Fprintln(a.out, "nothing changed"+goesOn(r.Epoch))
	}
	if r.Newer {
		fmt.Fprintln(a.out, "a newer configuration has taken effect meanwhile")
	}
	if len(r.Pending) > 0 {
		fmt.Fprintln(a.out, "takes effect at the next start of the agent:", strings.Join(r.Pending, ", "))
	}
}

func goesOn(epoch *int) string {
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

// changeLine is one changed value, with what the change does.
func changeLine(c api.Change) string {
	effect := map[string]string{"live": "applied in place", "epoch": "new epoch", "start": "at the next start"}[c.Effect]
	if effect == "" {
		effect = c.Effect
	}
	return fmt.Sprintf("%s: %s → %s (%s)", c.Key, orNone(c.Old), orNone(c.New), effect)
}

func orNone(value string) string {
	if value == "" {
		return "(none)"
	}
	return value
}
