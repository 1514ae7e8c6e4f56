package main

import (
	"context"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"outrider.org/outrider/agent/api"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this command, and of the agent and Envoy if they run",
		Args:  cobra.NoArgs,
		RunE: a.asking(func(ctx context.Context, client *api.Client, _ []string) error {
			versions := struct {
				Outrider string `json:"outrider"`
				Go       string `json:"go"`
				Agent    string `json:"agent,omitempty"`
				Envoy    string `json:"envoy,omitempty"`
			}{Outrider: version, Go: runtime.Version()}
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			status, err := client.Status(ctx)
			if err == nil { // an agent runs
				versions.Agent, versions.Envoy = status.Version, status.Envoy.Version
			}
			return a.print(versions, func() {
				rows := [][]cell{{text("outrider"), text("%s (%s)", version, versions.Go)}}
				if versions.Agent != "" {
					rows = append(rows, []cell{text("agent"), text("%s", versions.Agent)})
				}
				if versions.Envoy != "" {
					rows = append(rows, []cell{text("envoy"), text("%s", versions.Envoy)})
				}
				writeAligned(a.out, rows, "", fmtCell)
			})
		}),
	}
}

func fmtCell(c cell) string { return c.text }
