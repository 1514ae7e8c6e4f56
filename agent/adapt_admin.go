package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
)

// epochAdmin is what the supervisor asks of an epoch, over Envoy's admin client.
type epochAdmin struct {
	*envoy.Admin
	closeDoors   func(context.Context) error // see keeper.Client.CloseDoors
	own          bool                        // the address is this epoch's alone, not one that a bootstrap of the user's gives to all
	restartEpoch atomic.Int64                // as /server_info told it, -1 before; an epoch does not change its number
}

func newEpochAdmin(address string, closeDoors func(context.Context) error) *epochAdmin {
	a := &epochAdmin{closeDoors: closeDoors, Admin: envoy.NewAdmin(splitAddress(address)), own: strings.HasPrefix(filepath.Base(address), adminSocketPrefix)}
	a.restartEpoch.Store(-1)
	return a
}

// splitAddress tells a Unix socket's path from host:port.
func splitAddress(address string) (network, where string) {
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "@") {
		return "unix", address
	}
	return "tcp", address
}

// workersStarted is the gauge that is 1 once the listeners accept connections.
const workersStarted = "listener_manager.workers_started"

// State asks /ready first, a hundred bytes; /server_info has 150 KB and is asked once in an epoch's life.
func (a *epochAdmin) State(ctx context.Context) (epoch.State, error) {
	ready, state, err := a.Ready(ctx)
	if err != nil {
		return epoch.State{}, err
	}
	if !ready && state != envoy.StateDraining {
		return epoch.State{Server: state}, nil
	}
	stats, err := a.Stats(ctx, "^"+workersStarted+"$")
	if err != nil {
		return epoch.State{}, err
	}
	if !a.own || a.restartEpoch.Load() < 0 {
		info, err := a.ServerInfo(ctx)
		if err != nil {
			return epoch.State{}, err
		}
		a.restartEpoch.Store(int64(info.RestartEpoch))
	}
	return epoch.State{Server: state, RestartEpoch: int(a.restartEpoch.Load()), WorkersStarted: stats[workersStarted] == 1}, nil
}

// DrainListeners closes the listeners: at once, which is how a stop does it, not before Envoy has taken the connections that wait.
func (a *epochAdmin) DrainListeners(ctx context.Context, graceful bool) error {
	if graceful {
		return a.Admin.DrainListeners(ctx, true)
	}
	// Where it cannot be done, a few connections that come in this moment are reset; no reason not to stop.
	refused := a.closeDoors(ctx)
	if err := a.Admin.DrainListeners(ctx, false); err != nil {
		return errors.Join(err, refused)
	}
	return nil
}

// Activity is what the epoch has open, without Outrider's own listeners.
func (a *epochAdmin) Activity(ctx context.Context) (epoch.Activity, error) {
	now, err := a.Admin.Activity(ctx)
	if err != nil {
		return epoch.Activity{}, fmt.Errorf("what Envoy has open: %w", err)
	}
	return epoch.Activity{Connections: now.Connections, Requests: now.Requests, Tunnels: now.Tunnels}, nil
}
