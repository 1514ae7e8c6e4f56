package view

import (
	"fmt"
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// guards holds the filters that allow or deny the requests and connections that a proxy receives.
type guards struct {
	translate.SecurityFilters
	reads       []string // hosts on which the filters depend
	authorizers []translate.ExternalAuthorizer
	made        bool
	changed     bool // the filters were changed by the current update
	extended    bool // the extensions were changed by the current update
	// new extensions without effect until their modules are fetched
	pending []model.Extension
}

// update translates the filters again if a change affects them.
func (g *guards) update(v *ProxyView, touched model.ChangeSummary) {
	g.changed = !g.made || v.world.AffectsSecurity(touched, v.node) ||
		touched.ModulesChanged && len(g.pending) > 0 ||
		slices.ContainsFunc(g.reads, func(host string) bool {
			_, ok := touched.ChangedHosts[host]
			return ok
		})
	g.extended = false
	if g.changed {
		g.make(v)
	}
	v.extend(touched)
}

func (g *guards) make(v *ProxyView) {
	policies := translate.AuthorizationPolicies(v.world, v.node)
	tokens := translate.RequestAuthentications(v.world, v.node)
	before, pending := g.Extensions, g.pending
	extensions := g.withModules(v.world, v.world.Extensions(v.node))
	g.made = true
	g.SecurityFilters = translate.SecurityFilters{ExtAuthzHTTP: policies.ExtAuthzHTTP,
		JWTAuthn: tokens.Filters,
		RBACHTTP: policies.RBACHTTP, ExtAuthzNetwork: policies.ExtAuthzNetwork,
		RBACNetwork: policies.RBACNetwork, Extensions: extensions,
		Origins: slices.Concat(tokens.Origins, policies.Origins)}
	g.extended = g.extended || !g.Extensions.Equal(before) || len(pending)+len(g.pending) > 0
	g.reads, g.authorizers = policies.HostsRead, policies.Authorizers
	v.report("authentication", dedupe(tokens.Problems))
	v.report("authorization", dedupe(policies.Problems))
}

// withModules returns the extensions that listeners may use. A new extension of a proxy that
// already has listeners is pending until the first attempt to fetch its module has ended. Until
// then, the listeners do not refer to it; they continue to refer to its previous version, if there
// is one. An extension that restricts access is not pending if an extension that restricted access
// was removed, or no longer restricts it: the new extension may replace the earlier one, so its
// restrictions must begin at once.
func (g *guards) withModules(w *model.Mesh, all []model.Extension) (named []model.Extension) {
	g.pending = nil
	find := func(list []model.Extension, e model.Extension) int {
		return slices.IndexFunc(list, func(b model.Extension) bool {
			return b.IstioName() == e.IstioName()
		})
	}
	opens := slices.ContainsFunc(g.Extensions, func(e model.Extension) bool {
		now := find(all, e)
		return e.Object.RestrictsAccess() && (now < 0 || !all[now].Object.RestrictsAccess())
	})
	for _, e := range all {
		former := find(g.Extensions, e)
		isNew := g.made && (former < 0 || g.Extensions[former].Name() != e.Name())
		waits := isNew && (!opens || !e.Object.RestrictsAccess())
		if waits && e.GetWasm() != nil && !w.ClientsFetchModules() {
			if code, err := w.Module(e); code == nil && err == nil {
				g.pending = append(g.pending, e)
				if former >= 0 {
					named = append(named, g.Extensions[former])
				}
				continue
			}
		}
		named = append(named, e)
	}
	return named
}

// isFormer reports whether a newer version of the extension is pending, which will replace it.
func (g *guards) isFormer(e model.Extension) bool {
	return slices.ContainsFunc(g.pending, func(p model.Extension) bool {
		return p.IstioName() == e.IstioName()
	})
}

// withoutInbound reports the policies of a proxy without inbound listeners: none of them is
// enforced.
func (g *guards) withoutInbound() []object.Problem {
	var problems []object.Problem
	for _, o := range g.Origins {
		problems = append(problems, object.ProblemAt(o, condition.Warning,
			"not enforced for applications on this host: inbound traffic does not pass Envoy",
			"intercept it ([capture] mode), or add an ingress listener to the Sidecar"))
	}
	return problems
}

// hiddenAuthorizers reports policies whose external authorizer has no cluster, because the Sidecar
// does not import its host.
func (g *guards) hiddenAuthorizers(w *model.Mesh, scope *model.SidecarScope) []object.Problem {
	var problems []object.Problem
	for _, a := range g.authorizers {
		if scope.ImportedService(w, a.Host) != nil {
			continue
		}
		why, fix := a.Host+" is not exported to this namespace", "add it to exportTo of its ServiceEntry"
		if o := scope.Object; o != nil {
			why = fmt.Sprintf("%s at %s:%d does not import %s", o.Key, o.File, o.Line, a.Host)
			fix = "add the host to an egress listener of the Sidecar"
		}
		problems = append(problems, a.Policy.Warning("provider.name",
			"everything that the rules match is denied, as the authorizer is unknown: "+why, fix))
	}
	return problems
}
