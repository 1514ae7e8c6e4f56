package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/cmd/outrider/envoys"
)

func (a *app) envoyUseCommand() *cobra.Command {
	var flags nowFlags
	command := &cobra.Command{
		Use:   "use VERSION",
		Short: "Run an installed Envoy: by hot restart, or side by side",
		Long: "Use points /usr/lib/outrider/envoy to an installed version, and has every\n" +
			"running agent of this host reload (as \"outrider reload --if-changed\" does).\n" +
			"Agents whose configuration names no Envoy replace theirs without losing a\n" +
			"request: by hot restart, or side by side where the versions cannot hot-restart\n" +
			"each other. Use returns once the new epochs are live.\n\n" +
			"If an agent refuses, the link points to what it did before and agents that had\n" +
			"changed go back; the reasons are on standard error, and the exit code is 1.\n\n" +
			"With --now no agent waits for the clients of an epoch that still drains, see\n" +
			"outrider-reload(1).",
		Example: "  outrider envoy use 1.39.3",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string,
			cobra.ShellCompDirective) {
			versions, _ := a.store().Installed() // on an error, nothing is completed
			return versions, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			return forRoot(a.useEnvoy(command.Context(), arguments[0], flags))
		},
	}
	flags.addTo(command)
	return command
}

// used is the result of `outrider envoy use`.
type used struct {
	Version string      `json:"version"` // version that is selected now
	Before  string      `json:"before,omitempty"`
	Agents  []agentUses `json:"agents"`
}

// agentUses is the result of one agent's reload.
type agentUses struct {
	Socket string           `json:"socket"`
	Reload api.ReloadResult `json:"reload"`
	Envoy  string           `json:"envoy"` // path of the Envoy that runs now
}

func (a *app) useEnvoy(ctx context.Context, version string, flags nowFlags) error {
	store := a.store()
	unlock, err := store.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	before, err := store.Selected()
	if err != nil {
		return err
	}
	sockets := a.agentSockets()
	aborts := map[string][]int{}
	for _, socket := range sockets {
		if flags.now && len(sockets) > 1 {
			fmt.Fprintln(a.err, socket+":")
		}
		if aborts[socket], err = a.abortsAt(ctx, socket, flags); err != nil {
			return err
		}
	}
	if err := store.Select(version); err != nil {
		return err
	}
	result := used{Version: version, Before: before, Agents: []agentUses{}}
	refused := false
	for _, socket := range sockets {
		agent, err := a.reloadAt(ctx, socket, aborts[socket])
		if _, gone := errors.AsType[*api.NotRunningError](err); gone {
			continue // no agent listens on this socket
		}
		if err != nil {
			return fmt.Errorf("envoy %s is selected, but it is unknown whether the agent at %s "+
				"runs it (see \"outrider status\"): %w", version, socket, err)
		}
		result.Agents = append(result.Agents, agent)
		if refused = agent.Reload.Outcome == api.OutcomeRefused; refused {
			break
		}
	}
	if refused {
		result.Version = before
		err = a.takeBack(ctx, store, result)
	}
	if printed := a.printUsed(version, result, refused); printed != nil || err != nil {
		return errors.Join(printed, err)
	}
	return refusedIf(refused)
}

// takeBack restores the previous selection, and reloads the agents that have already restarted
// Envoy.
func (a *app) takeBack(ctx context.Context, store envoys.Store, result used) error {
	ctx = context.WithoutCancel(ctx) // complete even if the user interrupts the command
	if err := store.Select(result.Before); err != nil {
		return err
	}
	for _, agent := range result.Agents {
		if agent.Reload.Outcome != api.OutcomeRestarted {
			continue
		}
		back, err := a.reloadAt(ctx, agent.Socket, nil)
		if err == nil && back.Reload.Outcome == api.OutcomeRefused {
			err = errors.New(strings.Join(back.Reload.Reasons, "; "))
		}
		if err != nil {
			return fmt.Errorf("the agent at %s does not return to the previous Envoy: %w",
				agent.Socket, err)
		}
	}
	return nil
}

// agentSockets returns the sockets of all agents on the host or, with --socket, only that one.
func (a *app) agentSockets() []string {
	if a.socket != "" {
		return []string{a.socket}
	}
	var sockets []string
	for _, pattern := range []string{api.SocketName, "*/" + api.SocketName} {
		found, err := filepath.Glob(filepath.Join(a.paths.runtime, pattern))
		if err == nil { // always, because the pattern is valid
			sockets = append(sockets, found...)
		}
	}
	return sockets
}

// abortsAt returns the result of aborts for the agent that listens on a socket; no epochs if no
// agent does.
func (a *app) abortsAt(ctx context.Context, socket string, flags nowFlags) ([]int, error) {
	client := api.NewClient(socket)
	defer client.Close()
	numbers, err := a.aborts(ctx, client, flags)
	if _, gone := errors.AsType[*api.NotRunningError](err); gone {
		return nil, nil
	}
	return numbers, err
}

// reloadAt reloads the agent that listens on a socket, if a reload would change something. It also
// aborts the drain of the given epochs.
func (a *app) reloadAt(ctx context.Context, socket string, aborts []int) (agentUses, error) {
	client := api.NewClient(socket)
	defer client.Close()
	shown := a.startProgress("reloading", leaves("reload"))
	defer shown.end()
	request := api.ReloadRequest{IfChanged: true, AbortEpochs: aborts}
	reload, err := client.Reload(ctx, request, shown.report)
	if err != nil {
		return agentUses{}, err
	}
	status, err := client.Status(ctx)
	return agentUses{socket, reload, status.Envoy.Path}, err
}

func (a *app) printUsed(version string, result used, refused bool) error {
	if a.json {
		return a.printJSON(result)
	}
	for _, agent := range result.Agents {
		if len(result.Agents) > 1 {
			fmt.Fprintln(a.out, agent.Socket+":")
		}
		a.printReload(agent.Reload, false)
		if !refused && agent.Envoy != a.store().Path(version) {
			fmt.Fprintf(a.out, "the agent runs %s: its configuration names it ([envoy] binary)\n",
				agent.Envoy)
		}
	}
	selected := "no Envoy"
	if result.Version != "" {
		selected = "Envoy " + result.Version
	}
	link := a.store().Link
	switch target, err := os.Readlink(link); {
	case refused:
		fmt.Fprintf(a.err, "Envoy %s is not used: %s is selected, as before\n", version, selected)
	case err != nil:
		return err
	case len(result.Agents) == 0:
		fmt.Fprintf(a.out, "%s → %s; no agent runs: the next start uses it\n", link, target)
	default:
		fmt.Fprintf(a.out, "%s → %s\n", link, target)
	}
	return nil
}
