package driver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
)

// Admin implements epoch.Admin over Envoy's admin interface.
type Admin struct {
	*envoy.Admin
	// stopAccepting is nil where nothing is to be done.
	stopAccepting func(context.Context) error
	own           bool        // the address is one epoch's, not that of a bootstrap of the user
	started       atomic.Bool // of an own one, workersStarted was 1, which is final
}

// AdminSocketPrefix begins the names of the epochs' own admin sockets (interfaces.md, "Files").
const AdminSocketPrefix = "admin-"

// AdminSocket returns an epoch's own admin socket: one path per epoch, so that a closed interface
// is never mistaken for the next one's.
func AdminSocket(directory string, number int) string {
	return filepath.Join(directory, AdminSocketPrefix+strconv.Itoa(number)+".sock")
}

// Admin returns the admin interface of the epoch at an address.
func (l *Link) Admin(address string) *Admin {
	own := filepath.Dir(address) == l.Get().Info().Folder &&
		strings.HasPrefix(filepath.Base(address), AdminSocketPrefix)
	return &Admin{stopAccepting: l.stopAccepting, Admin: NewAdmin(address), own: own}
}

// NewAdmin returns a client of the admin interface at a Unix socket's path or host:port.
func NewAdmin(address string) *envoy.Admin {
	network := "tcp"
	if strings.HasPrefix(address, "/") || strings.HasPrefix(address, "@") {
		network = "unix"
	}
	return envoy.NewAdmin(network, address)
}

// stopAccepting makes the keeper refuse new connections for all Envoys.
func (l *Link) stopAccepting(ctx context.Context) error {
	err := l.Get().StopAccepting(ctx)
	if err != nil {
		l.options.Logger.Warn("connections that come while the listeners close may be reset",
			"error", err)
	}
	return err
}

// workersStarted is the gauge that is 1 once the listeners accept connections.
const workersStarted = "listener_manager.workers_started"

// State requests /ready, which has five bytes, and the gauge until it is set: an epoch that serves
// is queried all its life. On an epoch's own socket only that epoch answers. On a shared address
// /server_info says which one does; its 250 KB take Envoy's main thread and the agent 10 ms (the
// gauge server.hot_restart_epoch is right only seconds later).
func (a *Admin) State(ctx context.Context) (epoch.ServerState, error) {
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

// DrainListeners closes the listeners. A stop closes them at once, but not before Envoy has
// accepted the waiting connections; from then on no new ones come in even if Envoy does not answer.
func (a *Admin) DrainListeners(ctx context.Context, graceful bool) error {
	if graceful {
		return a.Admin.DrainListeners(ctx, true)
	}
	// Without it a few connections of this moment are reset, which does not prevent a stop.
	refused := a.stopAccepting(ctx)
	if err := a.Admin.DrainListeners(ctx, false); err != nil {
		return errors.Join(err, refused)
	}
	return nil
}

// Activity returns what the epoch has open, without Outrider's own listeners.
func (a *Admin) Activity(ctx context.Context) (epoch.Activity, error) {
	now, err := a.Admin.Activity(ctx)
	if err != nil {
		return epoch.Activity{}, fmt.Errorf("what Envoy has open: %w", err)
	}
	return epoch.Activity{Connections: now.Connections, Requests: now.Requests, Tunnels: now.Tunnels}, nil
}
