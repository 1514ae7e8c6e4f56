package capture

import "slices"

// Tables returns the nftables tables of the settings, or none if nothing is captured. While Envoy
// drains, they cover inbound connections only. While outrider-capture rejects connections, Tables
// returns only tables in force. Otherwise it returns the tables that outrider-capture would
// install, for the address families and resolvers of installed tables; if none are installed, for
// both families and the resolvers of the host.
func (c *Controller) Tables() []*Table { return c.tablesWith(nil) }

// TablesIfUnitRan returns the tables as if a unit ran, and the unit's control group.
func (c *Controller) TablesIfUnitRan(unit string) ([]*Table, string) {
	var units []Unit
	if root, err := cgroupMount(); err == nil && c.Settings != nil {
		// A unitWatch without inotify need not be closed. If the search fails, the unit is assumed
		// to be in system.slice.
		units, _ = (&unitWatch{root: root}).find(slices.Concat([]string{unit}, c.Settings.Units,
			c.Settings.ExcludeUnits))
	}
	at := slices.IndexFunc(units, func(u Unit) bool { return u.Name == unit })
	if at < 0 {
		units = slices.Insert(units, 0, Unit{Name: unit, Path: "system.slice/" + unit, Level: 2})
		at = 0
	}
	return c.tablesWith(units), units[at].Path
}

func (c *Controller) tablesWith(more []Unit) (tables []*Table) {
	if c.Settings == nil {
		return nil
	}
	_, phase, _ := c.phase()
	settings, now := c.settings(phase), c.State()
	users, families := c.Users, AddressFamilies{true, true}
	if now.CapturedFamilies.any() {
		users, families = now.Users, now.CapturedFamilies
	}
	units := slices.Concat(now.Units, more)
	closed := now.OutboundRejected || now.InboundRejected
	if settings.dnsPort() != 0 && (!closed || now.DNS.State == StateOn) {
		resolvers := now.DNS.Resolvers
		if now.DNS.State != StateOn {
			resolvers, _ = readResolvers(resolvConf)
		}
		tables = append(tables, dnsRules(settings, users, resolvers, units))
	}
	if !closed || now.State.InForce() {
		tables = append(tables, buildTable(settings, users, families, units))
	}
	if closed {
		tables = append(tables, closedRules(settings, users, units))
	}
	return tables
}
