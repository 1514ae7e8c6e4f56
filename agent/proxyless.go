package agent

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/renameio/v2"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/identity"
)

// withoutEnvoy implements requester for [envoy] enabled = false: no request starts an epoch.
type withoutEnvoy struct{ *epoch.Supervisor }

func (withoutEnvoy) Submit(epoch.Request) func(context.Context) (epoch.Result, error) {
	return func(context.Context) (epoch.Result, error) {
		return epoch.Result{Epoch: -1, Previous: -1, Mode: epoch.NoNewEpoch}, nil
	}
}

// specWithoutEnvoy returns the spec of a configuration without Envoy.
func specWithoutEnvoy() *epoch.Spec {
	return &epoch.Spec{AdminAddress: func(epoch.LaunchInput) string { return "" }}
}

// newRequester returns the requester of epochs for a configuration.
func newRequester(c *config.Config, supervisor *epoch.Supervisor) requester {
	if c.Envoy.Enabled {
		return supervisor
	}
	return withoutEnvoy{supervisor}
}

// readyWithoutEnvoy reports whether gRPC applications can start: the configuration is in force, and
// the workload has a certificate if it needs one.
func readyWithoutEnvoy(
	state *reloadState, manager *identity.Manager, mesh meshInForce,
) (ready bool, reason string) {
	provider := state.InForce().Config.Identity.Provider
	switch {
	case state.binary.Load() == nil:
		return false, "the configuration is not in force yet"
	case provider != "none" && provider != "spire" && manager.KeyPair() == nil:
		return false, "the workload has no certificate yet"
	}
	reason = mesh.closed()
	return reason == "", reason
}

// endEnvoys terminates Envoys that an earlier configuration started, because Envoy is now disabled.
func endEnvoys(ctx context.Context, link *epoch.KeeperLink, log *slog.Logger) error {
	processes, err := link.Connection().Client.Processes(ctx)
	if err != nil || len(processes) == 0 {
		return err
	}
	log.Warn("ending the Envoys of an earlier configuration: envoy.enabled is false")
	link.ShutdownKeeper()
	return openKeeper(ctx, link)
}

// conditionGRPCUnwritten is active while [xds] grpc_bootstrap_file cannot be written.
const conditionGRPCUnwritten = "grpc-bootstrap-unwritten"

// grpcBootstrap writes the bootstrap file of gRPC applications and holds the node in it.
type grpcBootstrap struct {
	board *condition.Registry
	node  atomic.Pointer[corev3.Node] // applications connect as this node; nil: no bootstrap file
}

// write writes [xds] grpc_bootstrap_file, which every user may read, and stores its node. content
// nil means that no file is configured.
func (g *grpcBootstrap) write(path string, content []byte) {
	if content == nil {
		g.node.Store(nil)
		return
	}
	if node, err := parseNode(content); err == nil { // never fails: the agent has made content
		g.node.Store(node)
	}
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) {
		return
	}
	err := renameio.WriteFile(path, content, 0o644, renameio.IgnoreUmask(),
		renameio.WithTempDir(filepath.Dir(path)))
	if err != nil {
		g.board.Raise(conditionGRPCUnwritten, condition.Error,
			"cannot write xds.grpc_bootstrap_file: "+err.Error())
		return
	}
	g.board.Clear(conditionGRPCUnwritten)
}
