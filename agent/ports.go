package agent

import (
	"context"
	"errors"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// conditionPortTaken is the condition of a start that waits for a port.
const conditionPortTaken = "port-taken"

// portPause is the time between two looks at the ports.
const portPause = time.Second

// awaitPorts waits while another program listens where Envoy is to listen and no epoch is live. It
// looks at the configuration in force, which a reload may change meanwhile. An error means that ctx
// has ended.
func (a *Agent) awaitPorts(ctx context.Context) error {
	defer a.awaited.Store(nil)
	defer a.board.Clear(conditionPortTaken)
	for {
		changed := a.supervisor.Changed()
		clash := a.checkClaims(ctx, a.reloader.InForce())
		if _, live := a.proxy.liveEpoch(); live || !passes(clash) {
			return nil
		}
		sentence := "Envoy cannot start yet: " + strings.Join(reasons(clash), "; ")
		a.awaited.Store(&sentence)
		a.board.Raise(conditionPortTaken, condition.Error, sentence)
		select {
		case <-changed:
		case <-time.After(portPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// portTaken says which programs listen where Envoy is to, so that it could not start; nil is none.
func (a *Agent) portTaken() error {
	err := neighbourhood(a.options.Config).Strangers(a.self(a.reloader.InForce()))
	if err == nil {
		return nil
	}
	return errors.New(strings.Join(reasons(err), "; "))
}
