// Package operations performs the operations of the private socket (api.Backend) and of D-Bus
// (bus.Backend) on the components that own the state. Each type has the components that its methods
// use.
package operations

import (
	"context"
	"errors"
	"net/http"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/health"
)

// EpochOperations performs the operations on epochs.
type EpochOperations struct {
	Supervisor *epoch.Supervisor
	Proxy      *epoch.Proxy
	Keeper     *epoch.KeeperLink
	Health     *health.Checker
}

// measureTime bounds the keeper's measurement of the epochs' memory and connections.
const measureTime = 2 * time.Second

// EpochsWithResourceUsage returns all epochs. Memory and connections are set for those that the
// keeper can measure.
func (o EpochOperations) EpochsWithResourceUsage(ctx context.Context) []api.Epoch {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	measured := o.Keeper.MeasureProcesses(ctx)
	all := o.Supervisor.Epochs()
	for i, e := range all {
		if figures, ok := measured[e.ID]; ok {
			all[i].MemoryBytes, all[i].Connections = figures.MemoryBytes, figures.ClientConnections
		}
	}
	return all
}

// Changed returns a channel that is closed when an epoch changes. Changes of conditions do not
// close it; condition.Registry publishes them as events.
func (o EpochOperations) Changed() <-chan struct{} { return o.Supervisor.Changed() }

// WaitReady returns once the proxy is ready, or an error with the reason if ctx ends first.
func (o EpochOperations) WaitReady(ctx context.Context, progress func(api.Progress)) error {
	reason := o.Proxy.WaitReady(ctx, func(reason string) { progress(api.Progress{Phase: reason}) })
	if reason != "" {
		return &api.Error{Message: "the proxy is not ready: " + reason}
	}
	return nil
}

// AbortEpoch kills an epoch.
func (o EpochOperations) AbortEpoch(ctx context.Context, number int) error {
	err := o.Supervisor.Abort(ctx, number)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, epoch.ErrNoEpoch):
		return &api.Error{Status: http.StatusNotFound, Message: err.Error()}
	}
	return api.NewRefusal(err.Error())
}

// clients implements drained with the connection counts that the status shows.
type clients struct {
	*epoch.Proxy
	keeper *epoch.KeeperLink
}

// Connections returns the number of clients' connections of an epoch.
func (c clients) Connections(ctx context.Context, e epoch.Epoch) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, measureTime)
	defer cancel()
	return c.keeper.ClientConnections(ctx, e.ID)
}
