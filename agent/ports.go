package agent

import (
	"context"
	"errors"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// conditionPortTaken is active while the start waits for a port.
const conditionPortTaken = "port-taken"

// portPause is the polling interval of awaitPorts.
const portPause = time.Second

// awaitPorts waits while no epoch is live and another program listens on a port that Envoy needs.
// It rereads the configuration in force on each poll, since a reload may change it. The error is
// that of ctx.
func (a *Agent) awaitPorts(ctx context.Context) error {
	defer a.proxy.SetWaiting("")
	defer a.board.Clear(conditionPortTaken)
	for {
		changed := a.supervisor.Changed()
		clash := a.checkClaims(ctx, a.reloader.InForce())
		if _, live := a.proxy.Epoch(); live || !passes(clash) {
			return nil
		}
		sentence := "Envoy cannot start yet: " + strings.Join(reasons(clash), "; ")
		a.proxy.SetWaiting(sentence)
		a.board.Raise(conditionPortTaken, condition.Error, sentence)
		select {
		case <-changed:
		case <-time.After(portPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// portTaken returns an error that names the programs listening on ports that Envoy needs, or nil.
func (a *Agent) portTaken() error {
	err := hostOf(a.options.Config).Strangers(a.self(a.reloader.InForce()))
	if err == nil {
		return nil
	}
	return errors.New(strings.Join(reasons(err), "; "))
}
