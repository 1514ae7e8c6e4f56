package view

import (
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// tableKey identifies what a table of names depends on, beside the world.
type tableKey struct {
	namespace string
	sidecar   *object.Object
}

// names publishes the table with which the proxy's agent answers DNS queries, if it wants one.
func (s *sidecar) names(v *View, touched model.Touched) {
	const unit = "names"
	if v.node.NameTable && (len(touched.Hosts) > 0 || v.units[unit] == nil) {
		v.put(unit, v.cache.nameTable(v.world, s.scope, v.node.Namespace))
	}
}

// nameTable returns the table of a scope, which proxies share.
func (c *Cache) nameTable(w *model.World, scope *model.Scope, namespace string) *resource.Resource {
	key := tableKey{namespace, scope.Object}
	table := c.tables[key]
	if table == nil {
		table = translate.NameTable(w.DNSNames(scope), w.Domain())
		c.tables[key] = table
	}
	return table
}
