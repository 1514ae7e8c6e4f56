package view

import (
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
)

// guards holds the filters that admit or deny what comes in to a proxy.
type guards struct {
	translate.Guards
	made    bool
	changed bool // by the current update
}

// update makes the filters anew if a change affects them.
func (g *guards) update(v *View, touched model.Touched) {
	g.changed = !g.made || v.world.Secured(touched, v.node)
	if g.changed {
		g.make(v)
	}
}

func (g *guards) make(v *View) {
	g.made = true
	tokens := translate.Authenticate(v.world, v.node)
	g.Guards = translate.Guards{Requests: tokens.Requests, Origins: tokens.Origins}
	v.report("authentication", dedupe(tokens.Problems))
}
