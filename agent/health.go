package agent

import (
	"context"
	"os"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/health"
	"outrider.org/outrider/agent/probe/execprobe"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/systemd"
)

// newHealth returns the checker that reports the workload's health to the upstream server.
func newHealth(b *base, c *config.Config, proxy captured, upstream *relay.Server) *health.Checker {
	report := func(healthy bool, reason string) {
		var problem *rpcstatus.Status
		if !healthy {
			problem = &rpcstatus.Status{Code: int32(codes.Internal), Message: reason}
		}
		upstream.ReportHealthToUpstream(resource.HealthType, problem)
	}
	return health.New(health.Options{Settings: healthSettings(c), Proxy: proxy, OnChange: report,
		UnitState: systemd.Manager{}.ActiveState, Exec: execProbes(b.options.Config.RunsInUnit),
		Conditions: b.board, Logger: b.logOf("health")})
}

// probeSocket is where outrider-probe.socket listens, for all instances.
const probeSocket = "/run/outrider/probe.sock"

// execProbes returns a function that runs the command of an exec probe: under systemd in
// outrider-probe@.service, otherwise as a child of the agent.
func execProbes(inUnit bool) func(ctx context.Context, arguments []string) error {
	if inUnit {
		return execprobe.NewRunner(probeSocket).Run
	}
	return func(ctx context.Context, arguments []string) error {
		path, err := execprobe.Find(arguments[0], 0, os.Geteuid())
		if err != nil {
			return err
		}
		return execprobe.Exec(ctx, path, arguments)
	}
}

// healthSettings returns the settings of the health that is reported to the upstream server.
func healthSettings(c *config.Config) health.Settings {
	return health.Settings{Enabled: c.ReportsHealth(), Health: c.Health}
}
