package agent

import (
	"context"
	"strings"
	"time"

	"outrider.org/outrider/agent/condition"
)

// conditionPortInUse is active while the start waits for a port.
const conditionPortInUse = "port-taken"

// portPause is the polling interval of awaitPorts.
const portPause = time.Second

// awaitPorts waits while no epoch is live and another program listens on a port that Envoy needs.
// It rereads the configuration in force on each poll, since a reload may change it. The error is
// that of ctx.
func (s *starter) awaitPorts(ctx context.Context) error {
	defer s.proxy.SetFirstEpochWaitReason("")
	defer s.board.Clear(conditionPortInUse)
	for {
		changed := s.supervisor.Changed()
		_, live := s.proxy.Epoch()
		conflict := s.claims.check(ctx, s.state.InForce(), live)
		if live || !transient(conflict) {
			return nil
		}
		sentence := "Envoy cannot start yet: " + strings.Join(reasons(conflict), "; ")
		s.proxy.SetFirstEpochWaitReason(sentence)
		s.board.Raise(conditionPortInUse, condition.Error, sentence)
		select {
		case <-changed:
		case <-time.After(portPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
