package agent

import (
	"context"
	"os"
	"strings"
	"time"

	"outrider.org/outrider/agent/blueprint"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/lifecycle"
)

// conditionKeyShared is active while users other than root and the agent's user may read a private
// key or a token.
const conditionKeyShared = "key-readable"

// keyRightsPause is the period of the check, which is periodic because no event announces a changed
// file mode.
const keyRightsPause = time.Minute

// keyRights checks which users may read the keys and tokens of the configuration in force.
type keyRights struct {
	lifecycle.Readiness
	state *reloadState
	board *condition.Registry
}

// Name returns the component's name.
func (*keyRights) Name() string { return "key rights" }

// Run implements lifecycle.Component. It does not wait for a file system that does not answer.
func (k *keyRights) Run(ctx context.Context) error {
	k.MarkReady()
	go func() {
		tick := time.NewTicker(keyRightsPause)
		defer tick.Stop()
		for {
			k.check()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	<-ctx.Done()
	return nil
}

func (k *keyRights) check() {
	me := blueprint.UserAccessOfProcess(nil, os.Geteuid(), os.Getegid())
	var found []string
	for _, path := range blueprint.SecretFiles(k.state.InForce().Config) {
		if why := me.ReadableByOthersReason(path); why != "" {
			found = append(found, why)
		}
	}
	if len(found) > 0 {
		k.board.Raise(conditionKeyShared, condition.Warning, strings.Join(found, "; "))
	} else {
		k.board.Clear(conditionKeyShared)
	}
}
