package main

import (
	"context"
	"runtime"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this command, and of the agent and Envoy if they run",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			versions := struct {
				Outrider string `json:"outrider"`
				Go       string `json:"go"`
				Agent    string `json:"agent,omitempty"`
				Envoy    string `json:"envoy,omitempty"`
			}{Outrider: version, Go: runtime.Version()}
			client := a.client()
			defer client.Close()
			ctx, cancel := context.WithTimeout(command.Context(), 2*time.Second)
			defer cancel()
			if status, err := client.Status(ctx); err == nil { // an agent that does not run has no version, that is all
				versions.Agent, versions.Envoy = status.Version, status.Envoy.Version
			}
			if a.json {
				return a.printJSON(versions)
			}
			rows := [][]cell{{text("outrider"), text("%s (%s)", versions.Outrider, versions.Go)}}
			if versions.Agent != "" {
				rows = append(rows, []cell{text("agent"), text("%s", versions.Agent)})
			}
			if versions.Envoy != "" {
				rows = append(rows, []cell{text("envoy"), text("%s", versions.Envoy)})
			}
			writeAligned(a.out, rows, "", fmtCell)
			return nil
		},
	}
}

func fmtCell(c cell) string { return c.text }
