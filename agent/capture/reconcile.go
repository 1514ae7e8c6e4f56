package capture

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// findUnits updates the list of running units from the settings; a changed list changes the rules.
func (h *helper) findUnits() {
	if h.Settings == nil || len(h.Settings.Units)+len(h.Settings.ExcludeUnits) == 0 {
		h.running = nil
		return
	}
	var err error
	if h.units == nil {
		if h.units, err = newUnitWatch(); err != nil {
			h.logf("%v", err)
			return
		}
	}
	running, err := h.units.find(slices.Concat(h.Settings.Units, h.Settings.ExcludeUnits))
	if err != nil {
		h.logf("%v", err) // the rules continue to use the units found before
		return
	}
	if !slices.Equal(running, h.running) {
		h.running = running
		h.generation++
	}
}

// unitsChanged returns a channel that delivers after a unit has started or stopped.
func (h *helper) unitsChanged() <-chan struct{} {
	if h.units == nil {
		return nil
	}
	return h.units.changed
}

// heldBack returns the reason why nothing is captured regardless of Envoy, or "".
func (h *helper) heldBack() string {
	switch {
	case h.Withdrawn:
		return "Envoy drains or was stopped"
	case h.Expired:
		return "the trial ended without outrider capture confirm"
	}
	return ""
}

// reconcileRules installs or withdraws the rules.
func (h *helper) reconcileRules(now time.Time) (State, string, AddressFamilies) {
	reason := h.heldBack()
	var families AddressFamilies
	if reason != "" {
		h.check.stall.reset()
	} else {
		families, reason = h.check.look(now)
		if !h.check.gone {
			h.gone = time.Time{}
		} else if h.gone.IsZero() {
			h.gone = now
		}
		if h.rules != nil && h.check.gone && now.Sub(h.gone) < deadLimit {
			families = h.installed.families // keep the rules: a new Envoy may listen soon
		}
	}
	if !families.any() {
		if h.Settings.PreserveClientAddress && h.check.gone &&
			strings.HasSuffix(reason, fmt.Sprint(InboundPort)) {
			reason += `; mode = "tproxy" needs the drop-in /usr/share/doc/outrider/tproxy.conf of ` +
				"outrider-envoy.service"
		}
		h.withdraw()
		return StateWithdrawn, reason, AddressFamilies{}
	}
	if err := h.put(families); err != nil {
		h.withdraw()
		return StateWithdrawn, err.Error(), AddressFamilies{}
	}
	if !h.Until.IsZero() {
		return StateTrial, "", families
	}
	return StateOn, "", families
}

// put installs the rules if they are not in force.
func (h *helper) put(families AddressFamilies) error {
	if h.rules != nil && h.installed.generation == h.generation &&
		h.installed.families == families {
		return nil
	}
	if err := h.keepNAT(); err != nil {
		return err
	}
	table := buildTable(h.Settings, h.users, families, h.running)
	socket := h.rules
	if socket == nil {
		var err error
		if socket, err = newOwnerSocket(); err != nil {
			return err
		}
	}
	table.OwnedByHelper = !h.unowned
	err := socket.install(table)
	if errors.Is(err, unix.EINVAL) && !h.unowned { // before Linux 5.12
		table.OwnedByHelper = false
		err = socket.install(table)
		h.unowned = err == nil
	}
	if err != nil {
		_ = socket.Close()
		h.rules = nil
		return err
	}
	h.rules = socket
	h.forget.begin()
	h.installed.generation, h.installed.families, h.installed.table = h.generation, families, table
	return nil
}

func (h *helper) withdraw() {
	if h.rules == nil {
		return
	}
	if h.unowned {
		if err := h.rules.remove(TableName(h.instance)); err != nil {
			h.logf("cannot withdraw the rules: %v", err)
			return
		}
	}
	_ = h.rules.Close()
	h.rules = nil
}
