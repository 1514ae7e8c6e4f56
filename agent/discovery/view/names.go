package view

import (
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// tableKey has everything, except the mesh, on which a table of names depends.
type tableKey struct {
	namespace string
	sidecar   *object.Object
}

// names publishes the table of names for DNS of the proxy's agent, if the proxy requests one.
func (s *sidecar) names(v *ProxyView, touched model.ChangeSummary) {
	const unit = "names"
	if v.node.WantsNameTable && (len(touched.ChangedHosts) > 0 || v.units[unit] == nil) {
		v.put(unit, v.cache.nameTable(v.world, s.scope, v.node.Namespace))
	}
}

// DropNameTables removes the tables of names.
func (c *Cache) DropNameTables() { clear(c.tables) }

// nameTable returns the table of names for a scope. Proxies with equal tableKeys share it.
func (c *Cache) nameTable(w *model.Mesh, scope *model.SidecarScope,
	namespace string) *resource.Resource {
	key := tableKey{namespace, scope.Object}
	table := c.tables[key]
	if table == nil {
		table = translate.NameTable(w.DNSNames(scope), w.Domain())
		c.tables[key] = table
	}
	return table
}
