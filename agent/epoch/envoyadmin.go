package epoch

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"outrider.org/outrider/agent/envoy"
)

// EnvoyAdmin implements Admin with Envoy's admin interface.
type EnvoyAdmin struct {
	*envoy.Admin
	link *KeeperLink // connection to the keeper
	// the address belongs to one epoch only; false: a custom bootstrap may use it for several
	own     bool
	started atomic.Bool // the gauge workersStarted was 1; if own is true, it remains 1
}

// AdminSocketPrefix is the prefix of the file names of admin sockets.
const AdminSocketPrefix = "admin-"

// AdminSocket returns the path of an epoch's admin socket. Each epoch has a path of its own: at a
// common path, an answer of the next epoch could be mistaken for one of this epoch.
func AdminSocket(directory string, number int) string {
	return filepath.Join(directory, AdminSocketPrefix+strconv.Itoa(number)+".sock")
}

// Admin returns a client of the admin interface at an address.
func (l *KeeperLink) Admin(address string) *EnvoyAdmin {
	own := filepath.Dir(address) == l.Connection().Info().Folder &&
		strings.HasPrefix(filepath.Base(address), AdminSocketPrefix)
	return &EnvoyAdmin{link: l, Admin: envoy.NewAdmin(address), own: own}
}

// stopAccepting makes the keeper refuse new connections to all Envoys.
func (l *KeeperLink) stopAccepting(ctx context.Context) error {
	err := l.Connection().StopEnvoysAccepting(ctx)
	if err != nil {
		l.log.Warn("cannot make Envoy refuse new connections: they may be reset",
			"error", err)
	}
	return err
}

// workersStarted is a gauge that is 1 once the listeners accept connections.
const workersStarted = "listener_manager.workers_started"

// State requests /ready and, until it is 1, the gauge workersStarted. Both responses are small,
// because State is called periodically. If several epochs share the address, State also requests
// the large /server_info to determine which epoch answers; Envoy updates the gauge
// server.hot_restart_epoch too late for that.
func (a *EnvoyAdmin) State(ctx context.Context) (ServerState, error) {
	ready, state, err := a.Ready(ctx)
	if err != nil {
		return ServerState{}, err
	}
	if !ready && state != envoy.StateDraining {
		return ServerState{Server: state}, nil
	}
	started := a.own && a.started.Load()
	if !started {
		gauges, err := a.Gauges(ctx, "^"+workersStarted+"$")
		if err != nil {
			return ServerState{}, err
		}
		started = gauges[workersStarted] == 1
		a.started.Store(started)
	}
	number := RestartEpochNotRead
	if !a.own {
		if number, err = a.RestartEpoch(ctx); err != nil {
			return ServerState{}, err
		}
	}
	return ServerState{Server: state, RestartEpoch: number, WorkersStarted: started}, nil
}

// DrainListeners closes the listeners. If graceful is false, the keeper first refuses new
// connections, so that Envoy only has to accept those in its queues.
func (a *EnvoyAdmin) DrainListeners(ctx context.Context, graceful bool) error {
	if graceful {
		return a.Admin.DrainListeners(ctx, true)
	}
	// If the keeper cannot refuse connections, at most a few are reset.
	refused := a.link.stopAccepting(ctx)
	if err := a.Admin.DrainListeners(ctx, false); err != nil {
		return errors.Join(err, refused)
	}
	return nil
}
