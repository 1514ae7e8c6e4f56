package capture

import "slices"

// Tables returns the tables that the settings produce, none if nothing is captured. While Envoy
// drains, they contain inbound connections only. If connections are rejected, they are the tables
// in force; otherwise they use the address families and resolvers of the installed ones, or all if
// none is installed.
func (c *Controller) Tables() []*Table { return c.tablesWith(nil) }

// TablesWith is Tables, as if a unit ran, and returns the unit's control group.
func (c *Controller) TablesWith(unit string) ([]*Table, string) {
	var units []Unit
	if root, err := cgroupMount(); err == nil && c.Settings != nil {
		// Without inotify it leaves nothing open. After an error the unit is in system.slice.
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
	users, families := c.Users, Families{true, true}
	if now.Families.any() {
		users, families = now.Users, now.Families
	}
	units := slices.Concat(now.Units, more)
	closed := now.Closed || now.ClosedInbound
	if settings.dnsPort() != 0 && (!closed || now.DNS.State == On) {
		resolvers := now.DNS.Resolvers
		if now.DNS.State != On {
			resolvers, _ = readResolvers(resolvConf)
		}
		tables = append(tables, dnsRules(settings, users, resolvers, units))
	}
	if !closed || now.State.InForce() {
		tables = append(tables, Rules(settings, users, families, units))
	}
	if closed {
		tables = append(tables, closedRules(settings, users, units))
	}
	return tables
}
