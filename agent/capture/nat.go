package capture

import "time"

// keepNAT creates a table, and the policy routes for Settings.PreserveClientAddress, with which
// established connections continue when the rules are withdrawn. The table captures nothing. The
// kernel translates established connections only while a nat chain exists, and tracks connections
// only while a rule refers to conntrack.
func (h *helper) keepNAT() error {
	if h.nat != nil && h.installed.nat == h.generation {
		return nil
	}
	if h.Settings.PreserveClientAddress {
		if err := policyRoutes(true); err != nil {
			return err
		}
	}
	socket := h.nat
	if socket == nil {
		var err error
		if socket, err = newOwnerSocket(); err != nil {
			return err
		}
	}
	table := &Table{Name: natName(h.instance), OwnedByHelper: !h.unowned,
		Chains: []Chain{{Name: "output", Type: "nat", Hook: "output", Priority: natPriority,
			Rules: []Rule{rule(ruleRedirected, Direct, redirected{})}}}}
	if h.Settings.PreserveClientAddress {
		table.Chains = append(table.Chains, answersChain())
	}
	if err := socket.install(table); err != nil {
		_ = socket.Close()
		h.nat = nil
		if h.unowned {
			return err
		}
		h.logf("established connections would not survive a withdrawal: %v", err)
		return nil
	}
	h.installed.nat = h.generation
	if h.nat == socket {
		return nil
	}
	h.nat = socket
	if err := h.store.Add(storedNAT, socket.file); err != nil {
		h.logf("established connections would not survive a kill: %v", err)
	}
	return nil
}

// reconcileNAT removes the nftables table that translates the addresses of connections which were
// captured before, once none of them is left. Until then it restores policy routes that another
// program has deleted.
func (h *helper) reconcileNAT(now time.Time) {
	if now.Sub(h.looked) < checkEvery {
		return
	}
	h.looked = now
	if h.nat != nil && h.Settings != nil && h.Settings.PreserveClientAddress {
		if err := policyRoutes(true); err != nil {
			h.logf("%v", err)
		}
	}
	if h.nat == nil || h.rules != nil {
		return
	}
	if left, err := capturedConnections(h.users.Envoy); err != nil {
		h.logf("%v", err)
	} else if !left {
		h.dropNAT()
	}
}

func (h *helper) dropNAT() {
	if h.nat == nil {
		return
	}
	if err := h.store.Remove(storedNAT); err != nil {
		h.logf("%v", err)
	}
	if err := h.nat.remove(natName(h.instance)); err != nil {
		h.logf("%v", err)
	}
	_ = h.nat.Close()
	h.nat = nil
}
