package agent

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
)

// withoutEnvoy implements requester where [envoy] enabled is false: no request starts an epoch.
type withoutEnvoy struct{ *epoch.Supervisor }

func (withoutEnvoy) Submit(epoch.Request) func(context.Context) (epoch.Result, error) {
	return func(context.Context) (epoch.Result, error) {
		return epoch.Result{Epoch: -1, Previous: -1, Mode: epoch.Unchanged}, nil
	}
}

// specWithoutEnvoy stands for the Envoy of a configuration without one.
func specWithoutEnvoy() *epoch.Spec {
	return &epoch.Spec{AdminAddress: func(epoch.Launch) string { return "" }}
}

// requester returns what starts the epochs of a configuration.
func (a *Agent) requester(c *config.Config) requester {
	if c.Envoy.Enabled {
		return a.supervisor
	}
	a.proxy.Replace(a.readyWithoutEnvoy)
	return withoutEnvoy{a.supervisor}
}

// readyWithoutEnvoy reports whether gRPC applications can start: the configuration is in force, and
// the workload has a certificate if it needs one.
func (a *Agent) readyWithoutEnvoy() (ready bool, reason string) {
	provider := a.reloader.InForce().Config.Identity.Provider
	switch {
	case a.serving.Load() == nil:
		return false, "the configuration is not in force yet"
	case provider != "none" && provider != "spire" && a.identity.Pair() == nil:
		return false, "the workload has no certificate yet"
	}
	reason = embeddedMesh{a}.Closed()
	return reason == "", reason
}

// endEnvoys ends Envoys of an earlier configuration that has no Envoy any more.
func (a *Agent) endEnvoys(ctx context.Context) error {
	processes, err := a.keeper.Get().Client.Processes(ctx)
	if err != nil || len(processes) == 0 {
		return err
	}
	a.log.Warn("ending the Envoys of an earlier configuration: envoy.enabled is false")
	a.keeper.Shutdown()
	return a.openKeeper(ctx)
}

// conditionGRPCUnwritten is active while [xds] grpc_bootstrap_file cannot be written.
const conditionGRPCUnwritten = "grpc-bootstrap-unwritten"

// writeGRPCBootstrap writes [xds] grpc_bootstrap_file, which every user may read. Its node is that
// of applications from now on.
func (a *Agent) writeGRPCBootstrap(path string, content []byte) {
	if content == nil {
		a.grpcNode.Store(nil)
		return
	}
	if node, err := parseNode(content); err == nil { // always: the agent made it
		a.grpcNode.Store(node)
	}
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) {
		return
	}
	err := renameio.WriteFile(path, content, 0o644, renameio.IgnoreUmask(),
		renameio.WithTempDir(filepath.Dir(path)))
	if err != nil {
		a.board.Raise(conditionGRPCUnwritten, condition.Error,
			"cannot write xds.grpc_bootstrap_file: "+err.Error())
		return
	}
	a.board.Clear(conditionGRPCUnwritten)
}
