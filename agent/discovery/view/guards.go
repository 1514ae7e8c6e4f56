package view

import (
	"slices"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/translate"
)

// guards holds the filters that admit or deny what comes in to a proxy.
type guards struct {
	translate.Guards
	reads   []string // hosts that they depend on
	made    bool
	changed bool // by the current update
}

// update makes the filters anew if a change affects them.
func (g *guards) update(v *View, touched model.Touched) {
	g.changed = !g.made || v.world.Secured(touched, v.node) ||
		slices.ContainsFunc(g.reads, func(host string) bool {
			_, ok := touched.Hosts[host]
			return ok
		})
	if g.changed {
		g.make(v)
	}
}

func (g *guards) make(v *View) {
	g.made = true
	policies := translate.Authorize(v.world, v.node)
	tokens := translate.Authenticate(v.world, v.node)
	g.Guards = translate.Guards{
		Requests:    slices.Concat(policies.External, tokens.Requests, policies.Requests),
		Connections: policies.Connections, Origins: slices.Concat(tokens.Origins, policies.Origins)}
	g.reads = policies.Reads
	v.report("authentication", dedupe(tokens.Problems))
	v.report("authorization", dedupe(policies.Problems))
}

// withoutInbound reports the policies of a proxy that has no inbound listeners: none is enforced.
func (g *guards) withoutInbound() []object.Problem {
	var problems []object.Problem
	for _, o := range g.Origins {
		problems = append(problems, object.ProblemAt(o, condition.Warning,
			"not enforced for applications on this host: inbound traffic does not pass Envoy",
			"intercept it ([capture] mode), or add an ingress listener to the Sidecar"))
	}
	return problems
}
