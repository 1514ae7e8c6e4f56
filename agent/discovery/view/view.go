// Package view holds the resources of one kind of proxy and updates them. For a change it
// translates only what depends on the change, and publishes only resources that differ.
//
// A unit is a named part of a view, such as a host or a port, with its resources and problems.
package view

import (
	"fmt"
	"maps"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/patch"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// ProxyView holds the resources of one kind of proxy. It is not safe for concurrent use; its feed
// is.
type ProxyView struct {
	world *model.Mesh
	node  model.Node
	cache *Cache
	feed  *resource.Feed

	units    map[string][]resource.Key   // keys of the resources that each unit publishes
	owners   map[resource.Key]string     // unit that published a resource last
	problems map[string][]object.Problem // problems of each unit by its name
	// changes for the next publication; nil: removed
	change    map[resource.Key]*resource.Resource
	closed    map[resource.Key]bool // listeners that a policy closes
	secrets   secrets
	patches   patches
	kind      kind
	guards    guards
	telemetry telemetry
	// listeners that are published without Telemetries, because clients refused them
	unobserved map[resource.Key]*OmittedTelemetry
	published  *mesh.Config // mesh config whose CA certificates were published

	extensions map[string]publishedExtension // by unit: "extension/" and the extension's name

	own        *ServedPorts // ports set by SetServedPorts; nil: those at the addresses of node
	ownChanged bool         // SetServedPorts was called since the last update
}

// kind is the part of a view that depends on the type of proxy: sidecar or router.
type kind interface {
	update(v *ProxyView, touched model.ChangeSummary)
	relisten(v *ProxyView) // relisten marks all listeners to be translated again
	// virtualHost returns the virtual host of a domain, nil if there is none
	virtualHost(routes, domain string) *translate.VirtualHost
	// eachHost calls visit for every virtual host, with the domain by which virtualHost finds it
	eachHost(visit func(routes string, port uint32, host, domain string))
}

// New returns a view of a mesh for the proxies of a node. The first Update publishes.
func New(world *model.Mesh, node model.Node, cache *Cache, inspect InspectSecrets) (*ProxyView,
	error) {
	v := &ProxyView{world: world, node: node, cache: cache, feed: resource.NewFeed(),
		units: map[string][]resource.Key{}, owners: map[resource.Key]string{},
		problems: map[string][]object.Problem{},
		change:   map[resource.Key]*resource.Resource{}, secrets: newSecrets(inspect),
		patches: newPatches(), unobserved: map[resource.Key]*OmittedTelemetry{}}
	switch node.Type {
	case model.Sidecar:
		v.kind = newSidecar()
	case model.Router:
		v.kind = newRouter()
	default:
		return nil, fmt.Errorf("unsupported proxy type %q: neither sidecar nor router", node.Type)
	}
	return v, nil
}

// SetMesh makes v a view of another mesh. It returns the argument for the next Update, which
// publishes only what differs.
func (v *ProxyView) SetMesh(world *model.Mesh, cache *Cache) model.ChangeSummary {
	touched := world.EverythingChanged()
	maps.Copy(touched.ChangedHosts, v.world.EverythingChanged().ChangedHosts)
	maps.Copy(touched.RoutedGateways, v.world.EverythingChanged().RoutedGateways)
	v.world, v.cache = world, cache
	if len(v.units) > 0 {
		v.observeAgain()
		v.guards.make(v)
		v.telemetry.make(v)
		v.kind.relisten(v)
	}
	return touched
}

// Mesh returns the model.Mesh from which v is translated.
func (v *ProxyView) Mesh() *model.Mesh { return v.world }

// Feed returns the feed of the view's resources.
func (v *ProxyView) Feed() *resource.Feed { return v.feed }

// Problems returns the problems that translation found, by unit (a named part of the view, such as
// a host or a port).
func (v *ProxyView) Problems() map[string][]object.Problem { return v.problems }

// RereadSecrets makes the next Update publish again each secret that is read from one of the files.
func (v *ProxyView) RereadSecrets(files map[string]bool) { v.secrets.reread(files) }

// ConfiguredSecrets calls each once for every secret of the view, with the objects that need the
// secret (at least one).
func (v *ProxyView) ConfiguredSecrets(each func(translate.ConfiguredSecret, []resource.Origin)) {
	for secret := range v.secrets.users {
		if origins := v.secrets.origins(secret); len(origins) > 0 {
			each(secret, origins)
		}
	}
}

// Update translates everything that a change touches, and publishes the result.
func (v *ProxyView) Update(touched model.ChangeSummary) {
	if touched.EnvoyFiltersChanged {
		v.repatch()
	}
	for host := range touched.ChangedHosts {
		v.orphanedRules(host)
	}
	if touched.GatewaysChanged || len(touched.RoutedGateways) > 0 {
		v.orphanedBindings()
	}
	if touched.TelemetriesChanged {
		v.observeAgain()
		touched = v.relabel(touched)
		if len(v.units) > 0 {
			v.kind.relisten(v)
		}
	}
	v.authorities()
	v.guards.update(v, touched)
	v.telemetry.update(v, touched)
	v.kind.update(v, touched)
	v.reconcileAdded()
	v.unused()
	v.publish()
}

// Reconfigure translates everything again after a change of the mesh config.
func (v *ProxyView) Reconfigure(everything model.ChangeSummary) {
	if current, _ := v.feed.Current(); current.Sequence == 0 {
		return // nothing was translated yet; the first Update will do it
	}
	v.observeAgain()
	v.guards.make(v)
	v.telemetry.make(v)
	v.kind.relisten(v)
	v.Update(everything)
}

func (v *ProxyView) publish() {
	v.secrets.publish(v)
	change := resource.Change{ListenersClosedByPolicy: v.closed}
	for key, r := range v.change {
		if r == nil {
			change.Remove = append(change.Remove, key)
		} else {
			change.Set = append(change.Set, r)
		}
	}
	v.feed.Publish(change)
	if len(change.Set) > 0 {
		clear(v.patches.stored) // overrides of resources that no longer exist
	}
	v.change = map[resource.Key]*resource.Resource{}
}

// put sets the resources of a unit, a named part of the view. It removes other resources that the
// unit had before.
func (v *ProxyView) put(unit string, resources ...*resource.Resource) {
	before := v.units[unit]
	var keys []resource.Key
	for _, r := range resources {
		if r != nil {
			keys = append(keys, r.Key())
			v.owners[r.Key()] = unit
			v.emit(r)
		}
	}
	for _, key := range before {
		// a resource may have moved to another unit of the view, which now publishes it
		if !slices.Contains(keys, key) && v.owners[key] == unit {
			delete(v.owners, key)
			v.retract(key)
		}
	}
	if len(keys) == 0 {
		delete(v.units, unit)
	} else {
		v.units[unit] = keys
	}
}

// report replaces the problems of a unit.
func (v *ProxyView) report(unit string, problems []object.Problem) {
	if len(problems) == 0 {
		delete(v.problems, unit)
	} else {
		v.problems[unit] = problems
	}
}

// clusters updates the clusters of a host's service; nil removes them.
func (v *ProxyView) clusters(host string, service *model.Service) {
	unit := "clusters/" + host
	if service == nil {
		v.put(unit)
		v.report(unit, nil)
		v.secrets.need(unit, nil)
		return
	}
	out := v.cache.clusters(v.world.MeshConfig(), service, v.world.DestinationRule(service, v.node),
		v.node)
	v.put(unit, out.Resources...)
	v.report(unit, out.Problems)
	v.secrets.need(unit, out.Secrets)
}

// orphanedRules reports DestinationRules for hosts without a service.
func (v *ProxyView) orphanedRules(host string) {
	var problems []object.Problem
	if rules := v.world.DestinationRuleObjects(host); len(rules) > 0 &&
		!v.world.HasMatchingService(host) {
		for _, o := range rules {
			problems = append(problems, o.Warning("host", fmt.Sprintf("no service has the host %s",
				host), "the rule has no effect until a ServiceEntry with this host is there"))
		}
	}
	v.report("rules/"+host, problems)
}

// orphanedBindings reports VirtualServices for gateways that do not exist.
func (v *ProxyView) orphanedBindings() {
	var problems []object.Problem
	for _, name := range v.world.RoutedGateways() {
		if v.world.HasGateway(name) {
			continue
		}
		for _, r := range v.world.GatewayVirtualServices(name, v.node.Namespace) {
			at := slices.IndexFunc(r.Spec.Gateways, func(g string) bool {
				return model.GatewayName(g, r.Object.Namespace) == name
			})
			problems = append(problems, r.Object.Warning(fmt.Sprintf("gateways[%d]", at),
				fmt.Sprintf("there is no Gateway %s", name), "add it or correct the name"))
		}
	}
	v.report("bindings", problems)
}

// Cache shares translated services, parsed EnvoyFilters and tables of names between views.
type Cache struct {
	byHost   map[string][]translated
	byFilter map[*object.Object]*patch.EnvoyFilter
	// encoded tables of names for DNS proxies, shared by views
	tables map[tableKey]*resource.Resource
}

type translated struct {
	service *model.Service
	rule    *model.MergedDestinationRule
	reader  string
	out     translate.Clusters
}

// NewCache returns an empty cache.
func NewCache() *Cache {
	return &Cache{byHost: map[string][]translated{}, byFilter: map[*object.Object]*patch.EnvoyFilter{},
		tables: map[tableKey]*resource.Resource{}}
}

// Drop removes the translated services of changed hosts, and parsed EnvoyFilters if any has
// changed.
func (c *Cache) Drop(touched model.ChangeSummary) {
	for host := range touched.ChangedHosts {
		delete(c.byHost, host)
	}
	if touched.EnvoyFiltersChanged {
		clear(c.byFilter)
	}
}

// Clear removes all translated services and tables.
func (c *Cache) Clear() {
	clear(c.byHost)
	clear(c.tables)
}

func (c *Cache) clusters(m *mesh.Config, service *model.Service, rule *model.MergedDestinationRule,
	node model.Node) translate.Clusters {
	t := translated{service: service, rule: rule,
		reader: translate.ClusterVariantKey(m, service, rule, node)}
	if found := c.find(t); found != nil {
		return found.out
	}
	t.out = translate.ServiceClusters(m, service, rule, node)
	c.byHost[service.Host] = append(c.byHost[service.Host], t)
	return t.out
}

// find returns the cached translation with the service, DestinationRule and ClusterVariantKey of
// like; nil if there is none.
func (c *Cache) find(like translated) *translated {
	for i, t := range c.byHost[like.service.Host] {
		if t.service == like.service && t.rule == like.rule && t.reader == like.reader {
			return &c.byHost[like.service.Host][i]
		}
	}
	return nil
}

// routesHTTP reports whether a VirtualService has HTTP routes, or has problems that may have
// removed its HTTP routes.
func routesHTTP(r *model.MergedVirtualService) bool {
	return r != nil && len(r.HTTP)+len(r.Problems) > 0
}

func resolutionNone(p *model.Port) bool {
	return p.Entry.Resolution == networking.ServiceEntry_NONE
}
