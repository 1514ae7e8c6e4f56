package discovery

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/resource"
)

// FileText is the content of a file with its path.
type FileText = store.FileText

// ReadFileTexts reads files and directories as Check does. It returns an error if they have more
// than limit bytes in total.
func ReadFileTexts(paths []string, limit int) ([]FileText, error) {
	return store.ReadFileTexts(paths, limit)
}

// Comparison contains what proposed files would change for a proxy.
type Comparison struct {
	Changes  []ResourceChange // changes, sorted by resource
	Problems []Problem        // problems in the proposed files, or caused by them elsewhere
}

// ResourceChange describes a resource that differs from the one that is served.
type ResourceChange struct {
	Action string // kind of change: "added", "changed" or "removed"
	Type   string // type URL of the resource
	Name   string
	Cause  resource.Origin // changed object that causes the difference; zero: unknown
}

// proposed is a proxy's configuration translated from the proposed files.
type proposed struct {
	before, after map[object.Key]*object.Object
	problems      []Problem
	domain        string
	mesh          *mesh.Config
	served        *resource.Snapshot
	hosts         []view.VirtualHostOrigins
	overrides     []view.EnvoyFilterOverride
}

// Compare returns what proposed files would change for a proxy. It publishes nothing.
// store.Store.WithProposal describes which files they replace. listening has the addresses on which
// the host listens; see CheckOptions.
func (s *Server) Compare(ctx context.Context, node *corev3.Node, texts []FileText, folders []string,
	listening []netip.AddrPort) (Comparison, error) {
	v, err := s.viewOf(node)
	if err != nil {
		return Comparison{}, err
	}
	s.mu.Lock()
	namespace := cmp.Or(v.namespace, s.config.namespace)
	s.mu.Unlock()
	check := s.check()
	proposal := store.ParseProposal(texts, folders, store.Options{Namespace: namespace,
		Validate: check.object, ValidateEnvoyFilters: check.unlinked})
	var p proposed
	if ended := s.inRun(ctx, func() { p, err = s.propose(v, proposal) }); ended != nil {
		return Comparison{}, ended
	}
	if err != nil {
		return Comparison{}, err
	}
	world := model.NewMesh(p.domain, p.mesh)
	world.SetKeySets(s.keySets.KeySet)
	s.setModules(world)
	made, err := view.New(world, v.Node(), view.NewCache(), s.certificates.look)
	if err != nil {
		return Comparison{}, err
	}
	touched := world.Apply(additions(slices.SortedFunc(maps.Values(p.after), object.CompareAge)))
	made.RestoreEnvoyFilterOverrides(p.overrides)
	made.Update(touched)
	next, _ := made.Feed().Current()
	refs, views := references{}, map[string]*served{"": {ProxyView: made}}
	refs.update(world, touched)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropCertificates()
	var refused []Problem
	for key, of := range p.served.AllRefused() {
		if now := next.Get(key); now != nil && now.Version == of.Resource.Version {
			refused = append(refused, refusedProblem(now, s.likeliest(made, of), of))
		}
	}
	for _, o := range made.EnvoyFilterOverrides() {
		for _, filter := range made.SuspectedEnvoyFilters(o) {
			refused = append(refused, refusedFilter(o, filter))
		}
	}
	known := map[Problem]bool{}
	for _, problem := range s.problems {
		known[problem] = true
	}
	problems := gather(p.problems, slices.Concat(refs.problems(), unselected(world, views),
		made.ExposedPortProblems(listening)), views)
	problems = slices.DeleteFunc(slices.Clone(problems), func(problem Problem) bool {
		return known[problem] && !proposal.HasFile(problem.File)
	})
	return Comparison{Changes: p.changes(next, made.AllVirtualHostOrigins()),
		Problems: gather(problems, refused, nil)}, nil
}

// propose returns the configuration of a view translated from the proposed files. Only Run may call
// it.
func (s *Server) propose(v *served, proposal store.Proposal) (proposed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.config
	if !c.loaded {
		return proposed{}, errors.New("the mesh configuration has not been read yet")
	}
	if s.settings.ServesNoEnvoy {
		return proposed{}, errors.New("Envoy gets its resources from the upstream server, not " +
			"from mesh files of this host")
	}
	next := c.store.WithProposal(proposal)
	p := proposed{before: map[object.Key]*object.Object{}, after: map[object.Key]*object.Object{},
		problems: next.Problems(), domain: s.options.Domain, mesh: c.world.MeshConfig(),
		hosts: v.AllVirtualHostOrigins(), overrides: v.EnvoyFilterOverrides()}
	p.served, _ = v.Feed().Current()
	for _, o := range c.store.Objects(proposal.Namespace()) {
		p.before[o.Key] = o
	}
	for _, o := range next.Objects(proposal.Namespace()) {
		p.after[o.Key] = o
	}
	return p, nil
}

// changes returns the differences between the served resources and the snapshot next. hosts has the
// origins of the virtual hosts in next.
func (p proposed) changes(next *resource.Snapshot,
	hosts []view.VirtualHostOrigins) []ResourceChange {
	cause := p.cause()
	now, then := originsOf(hosts), originsOf(p.hosts)
	var all []ResourceChange
	add := func(change string, r *resource.Resource, origins []resource.Origin) {
		all = append(all, ResourceChange{change, r.Type, r.Name, cause(origins)})
	}
	for _, kind := range next.Types() {
		for name, r := range next.ByType(kind) {
			switch old := p.served.ByType(kind)[name]; {
			case old == nil:
				add("added", r, now.of(r))
			case old.Version != r.Version:
				add("changed", r, slices.Concat(now.of(r), then.of(old)))
			}
		}
	}
	for _, kind := range p.served.Types() {
		for name, r := range p.served.ByType(kind) {
			if next.ByType(kind)[name] == nil && !p.served.IsRetained(r.Key()) {
				add("removed", r, then.of(r))
			}
		}
	}
	slices.SortFunc(all, func(a, b ResourceChange) int {
		return cmp.Or(cmp.Compare(a.Action, b.Action), cmp.Compare(a.Type, b.Type),
			cmp.Compare(a.Name, b.Name))
	})
	return all
}

// cause returns a function that finds the changed object among a resource's origins: the first one
// that changed, or, if only one object changed at all, that one.
func (p proposed) cause() func(origins []resource.Origin) resource.Origin {
	changed := map[object.Key]object.Change{}
	for _, objects := range []map[object.Key]*object.Object{p.before, p.after} {
		for key := range objects {
			c := object.Change{Old: p.before[key], New: p.after[key]}
			if !object.Equal(c.Old, c.New) {
				changed[key] = c
			}
		}
	}
	var only resource.Origin
	for _, c := range changed {
		if len(changed) == 1 {
			only = c.NewElseOld().Origin()
		}
	}
	return func(origins []resource.Origin) resource.Origin {
		for _, o := range origins {
			key := object.Key{Kind: object.Kind(o.Kind), Namespace: o.Namespace, Name: o.Name}
			if _, ok := changed[key]; ok {
				return o
			}
		}
		return only
	}
}

// hostOrigins has the origins of virtual hosts, by the name of their route configuration.
type hostOrigins map[string][]resource.Origin

func originsOf(hosts []view.VirtualHostOrigins) hostOrigins {
	all := hostOrigins{}
	for _, h := range hosts {
		all[h.Routes] = append(all[h.Routes], h.Origins...)
	}
	return all
}

// of returns the origins of a resource, followed by those of its virtual hosts.
func (h hostOrigins) of(r *resource.Resource) []resource.Origin {
	if r.Type != resource.RouteType {
		return r.Origins
	}
	return slices.Concat(r.Origins, h[r.Name])
}
