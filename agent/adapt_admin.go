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
	closeDoors func(context.Context) error // see keeper.Client.StopAccepting
	own        bool                        // the address is this epoch's alone, not one that a bootstrap of the user's gives to all
	started    atomic.Bool                 // of an own one, workersStarted was 1: it stays so
}

// epochAdmin returns what asks the epoch at an address.
func (a *Agent) epochAdmin(address string) *epochAdmin {
	own := filepath.Dir(address) == a.keeper.get().Info().Folder && strings.HasPrefix(filepath.Base(address), adminSocketPrefix)
	return &epochAdmin{closeDoors: a.closeDoors, Admin: envoy.NewAdmin(splitAddress(address)), own: own}
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

// State asks /ready first, five bytes, and the gauge once it is, until that is set: an epoch that serves is asked all its life. Who answers on an epoch's own socket is that epoch. Of an address that
// all have, /server_info tells, whose 250 KB take Envoy's main thread and the agent 10 ms (the gauge server.hot_restart_epoch is right only
// seconds later).
func (a *epochAdmin) State(ctx context.Context) (epoch.ServerState, error) {
	ready, state, err := a.Ready(ctx)
	if err != nil {
		return epoch.ServerState{}, err
	}
	if !ready && state != envoy.StateDraining {
		return epoch.ServerState{Server: state}, nil
	}
	started := a.own && a.started.Load()
	if !started {
		gauges, err := a.Gauges(ctx, "^"+workersStarted+"$")
		if err != nil {
			return epoch.ServerState{}, err
		}
		started = gauges[workersStarted] == 1
		a.started.Store(started)
	}
	number := epoch.OwnAddress
	if !a.own {
		info, err := a.ServerInfo(ctx)
		if err != nil {
			return epoch.ServerState{}, err
		}
		number = info.RestartEpoch
	}
	return epoch.ServerState{Server: state, RestartEpoch: number, WorkersStarted: started}, nil
}

// DrainListeners closes the listeners: at once, which is how a stop does it, not before Envoy has taken the connections that wait. Then
// no new ones come in even if Envoy cannot be told.
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
