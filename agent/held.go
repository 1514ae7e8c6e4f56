package agent

import (
	"maps"
	"slices"
	"sync"

	"outrider.org/outrider/agent/config"
)

// heldConfigs are the configurations of reloads whose epoch needs their secrets and upstream
// server, by reload ID.
type heldConfigs struct {
	mu      sync.Mutex
	configs map[uint64]*config.Config
}

// hold provides the secrets and the upstream server of a reload's configuration until unhold.
func (a *Agent) hold(id uint64, c *config.Config) {
	a.held.mu.Lock()
	defer a.held.mu.Unlock()
	if a.held.configs == nil {
		a.held.configs = map[uint64]*config.Config{}
	}
	a.held.configs[id] = c
	a.prepareFor(c)
}

// unhold ends the hold of a reload, and those of older ones unless it was refused. The newest
// remaining one counts, or else the configuration in force.
func (a *Agent) unhold(id uint64, refused bool, inForce *config.Config) {
	a.held.mu.Lock()
	defer a.held.mu.Unlock()
	maps.DeleteFunc(a.held.configs, func(held uint64, _ *config.Config) bool {
		return held == id || !refused && held < id
	})
	if left := slices.Sorted(maps.Keys(a.held.configs)); len(left) > 0 {
		a.prepareFor(a.held.configs[left[len(left)-1]])
		return
	}
	a.identity.Configure(a.identitySettings(inForce))
	a.offerUpstream(inForce)
}

func (a *Agent) prepareFor(c *config.Config) {
	a.offerUpstream(c)
	a.identity.Prepare(a.identitySettings(c))
}
