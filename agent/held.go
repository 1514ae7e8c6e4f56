package agent

import (
	"maps"
	"slices"
	"sync"

	"outrider.org/outrider/agent/config"
)

// heldConfigs holds the configurations of reloads whose epochs are starting, by reload ID, so that
// the agent provides the secrets and the upstream servers that these epochs need.
type heldConfigs struct {
	identity *workloadIdentity
	upstream *upstream

	mu      sync.Mutex
	configs map[uint64]*config.Config
}

// hold makes the agent provide the secrets, and connect to the upstream server, of the
// configuration c until unhold is called for the same reload.
func (h *heldConfigs) hold(id uint64, c *config.Config) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.configs == nil {
		h.configs = map[uint64]*config.Config{}
	}
	h.configs[id] = c
	h.prepareFor(c)
}

// unhold ends the hold of a reload and, unless that reload was refused, the holds of older reloads.
// The agent then provides for the newest configuration still held, or for the one in force.
func (h *heldConfigs) unhold(id uint64, refused bool, inForce *config.Config) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.configs, func(held uint64, _ *config.Config) bool {
		return held == id || !refused && held < id
	})
	if left := slices.Sorted(maps.Keys(h.configs)); len(left) > 0 {
		h.prepareFor(h.configs[left[len(left)-1]])
		return
	}
	h.identity.configure(inForce)
	h.upstream.offer(inForce)
}

func (h *heldConfigs) prepareFor(c *config.Config) {
	h.upstream.offer(c)
	h.identity.prepare(c)
}
