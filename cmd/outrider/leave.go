package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
)

func (a *app) leaveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "leave",
		Short: "Leave the mesh that this host has joined",
		Long: "Leave is the opposite of join. A host whose health the mesh knows announces that it\n" +
			"is not healthy any more, and waits for termination_drain_duration, so that others\n" +
			"stop calling it. Then leave removes the drop-in 90-join.toml, the copies of token\n" +
			"and root certificates, and the stored certificate, and has the agent reload: a new\n" +
			"epoch serves the host's own configuration, while the one before drains.\n\n" +
			"A host that has joined no mesh stays as it is.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return &api.Error{Status: 403, Message: "not authorised: only root may leave a mesh"}
			}
			return a.leave(command.Context())
		},
	}
}

// left is the JSON output of `outrider leave`.
type left struct {
	Address string   `json:"address,omitempty"` // address of the mesh's server
	Epoch   *int     `json:"epoch,omitempty"`
	Removed []string `json:"removed"`
}

func (a *app) leave(ctx context.Context) error {
	h, err := a.meshHost(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	result := left{Removed: []string{}}
	if !h.joined() && !exists(h.Token) && !exists(h.Roots) { // a join that was killed leaves files
		return a.print(result, func() {
			fmt.Fprintln(a.out, "this host has joined no mesh: nothing to do")
		})
	}
	shown := a.startProgress("leaving", "")
	defer shown.end()
	if err := h.leave(ctx, &result, shown); err != nil {
		return err
	}
	shown.end()
	return a.print(result, func() {
		if result.Address != "" {
			fmt.Fprintln(a.out, "left the mesh of", result.Address)
		}
		if result.Epoch != nil {
			fmt.Fprintf(a.out, "epoch %d serves the configuration of this host\n", *result.Epoch)
		}
		for _, path := range result.Removed {
			fmt.Fprintln(a.out, "removed", path)
		}
	})
}

// leave removes the files of the join, and makes the agent reload. If that fails, it restores the
// files, and the host remains in the mesh.
func (h *meshHost) leave(ctx context.Context, result *left, shown *progress) error {
	var change fileChange
	if err := change.save(h.Roots, h.Token, h.DropIn); err != nil {
		return err
	}
	result.Address = h.status.Discovery.Address
	err := h.announce(ctx, shown)
	for _, path := range []string{h.DropIn, h.Token, h.Roots} {
		if err == nil && exists(path) {
			if err = remove(path); err == nil {
				result.Removed = append(result.Removed, path)
			}
		}
	}
	if err == nil {
		err = h.removeStored()
	}
	if err == nil {
		_ = os.Remove(h.JoinDir) // retains a folder that is not empty
	}
	ctx = context.WithoutCancel(ctx) // the reload completes even if the user interrupts the command
	if err == nil && h.running {
		err = h.reload(ctx, shown)
	}
	if err != nil {
		err = fmt.Errorf("%w\nthe host is still in the mesh", errors.Join(err, change.undo()))
	}
	if !h.running {
		return err
	}
	undrained, failed := h.client.Undrain(ctx, shown.report)
	if failed == nil {
		result.Epoch = &undrained.Epoch
	}
	return errors.Join(err, failed)
}

// announce makes the agent report to the mesh that the host is unhealthy, and then waits for
// envoy.termination_drain_duration, as a stop of the agent does.
func (h *meshHost) announce(ctx context.Context, shown *progress) error {
	// the agent does not run, or reports no health to the mesh
	if !h.running || h.status.Health == nil {
		return nil
	}
	loaded, err := config.Load(h.options)
	if err != nil {
		return err
	}
	_, err = h.client.Drain(ctx, api.DrainRequest{ReportUnhealthy: true}, shown.report)
	if err != nil {
		return err
	}
	until := time.Now().Add(loaded.Config.Envoy.TerminationDrainDuration)
	shown.report(api.Progress{Phase: "waiting until the mesh stops calling this host", Until: until})
	select {
	case <-time.After(time.Until(until)):
		return nil
	case <-ctx.Done():
		return errors.New("interrupted")
	}
}

// removeStored removes the stored certificate if no agent runs. A running agent removes it in the
// reload.
func (h *meshHost) removeStored() error {
	if h.running {
		return nil
	}
	state := filepath.Join(h.a.paths.state, cmp.Or(h.options.Instance, "outrider"))
	if loaded, err := config.Load(h.options); err == nil {
		if at, set := loaded.Positions["paths.state_dir"]; set && at.File != "" {
			state = loaded.Config.Paths.StateDir
		}
	}
	return remove(filepath.Join(state, "certificate.sealed"))
}
