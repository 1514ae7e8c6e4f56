package view

import (
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// A Telemetry must not hold back other objects. If a client refuses a listener, also with earlier
// EnvoyFilters, the view publishes it without what Telemetries add. This ends when a Telemetry or
// MeshConfig changes, with Retry, or if the client refuses that version, too.

// Unobserved is a listener that is published without what Telemetries add.
type Unobserved struct {
	resource.Key
	Reason string // error message of the client

	refused string // version that the client refused
	failed  bool   // the client refused the listener without Telemetries, too
}

// Unobserve publishes refused listeners without what Telemetries add. It returns those that begin.
func (v *View) Unobserve(refused map[resource.Key]*resource.Refused) (all []Unobserved) {
	changed := false
	for key, of := range refused {
		original := v.original(key)
		if key.Type != resource.ListenerType || of.Unbound || of.Offered || of.Retrying ||
			v.patches.added[key] != nil || original == nil || original.Key() != key {
			continue
		}
		u := v.unobserved[key]
		switch {
		case u != nil && !u.failed:
			u.failed, u.refused = true, original.Version
		case u != nil && u.refused == original.Version,
			translate.Unobserved(v.world, original) == original:
			continue
		default:
			u = &Unobserved{Key: key, Reason: of.Reason, refused: original.Version}
			v.unobserved[key] = u
			all = append(all, *u)
		}
		v.emit(original)
		changed = true
	}
	if changed {
		v.publish()
	}
	return all
}

// Unobserved returns the listeners without what Telemetries add, sorted by key.
func (v *View) Unobserved() (all []Unobserved) {
	for _, u := range v.unobserved {
		if !u.failed {
			all = append(all, *u)
		}
	}
	slices.SortFunc(all, func(x, y Unobserved) int { return x.Key.Compare(y.Key) })
	return all
}

// Observers returns the Telemetries that set what the proxy logs, traces or counts.
func (v *View) Observers() []resource.Origin {
	all := slices.Concat(v.telemetry.client.Origins, v.telemetry.server.Origins)
	for _, mode := range []model.Mode{model.Client, model.Server} {
		if m := v.world.Metrics(v.node, mode); m != nil && m.Object != nil {
			all = append(all, m.Object.Origin())
		}
	}
	return all
}

// observed returns a translated resource as it is published.
func (v *View) observed(r *resource.Resource) *resource.Resource {
	if u := v.unobserved[r.Key()]; u == nil || u.failed {
		return r
	}
	return translate.Unobserved(v.world, r)
}

// observeAgain publishes all listeners with what Telemetries add.
func (v *View) observeAgain() {
	for key := range v.unobserved {
		original := v.original(key)
		delete(v.unobserved, key)
		if original != nil {
			v.emit(original)
		}
	}
}
