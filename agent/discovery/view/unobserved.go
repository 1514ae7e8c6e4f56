package view

import (
	"slices"

	"outrider.org/outrider/agent/discovery/translate"
	"outrider.org/outrider/agent/resource"
)

// A refused Telemetry must not delay changes of other objects. If a client refuses a listener, even
// with earlier EnvoyFilters, the view publishes it without Telemetries. The listener gets its
// Telemetries again when a Telemetry or MeshConfig changes, by RetryEnvoyFilterOverrides, or if the
// client refuses the version without them, too.

// OmittedTelemetry is a listener that is published without Telemetries.
type OmittedTelemetry struct {
	resource.Key
	Reason string // error message of the client

	refused string // version that the client refused
	failed  bool   // the client also refused the version without Telemetries
}

// OmitTelemetry publishes refused listeners without Telemetries. It returns the listeners whose
// Telemetries it has omitted only now.
func (v *ProxyView) OmitTelemetry(refused map[resource.Key]*resource.RefusedVersion) (all []OmittedTelemetry) {
	changed := false
	for key, of := range refused {
		original := v.original(key)
		if key.Type != resource.ListenerType || of.BindFailed || of.OfferToNewClients ||
			of.Retrying ||
			v.patches.added[key] != nil || original == nil || original.Key() != key {
			continue
		}
		u := v.unobserved[key]
		switch {
		case u != nil && !u.failed:
			u.failed, u.refused = true, original.Version
		case u != nil && u.refused == original.Version,
			translate.WithoutTelemetry(v.world, original) == original:
			continue
		default:
			u = &OmittedTelemetry{Key: key, Reason: of.Reason, refused: original.Version}
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

// OmittedTelemetry returns the listeners that are published without Telemetries, sorted by key.
func (v *ProxyView) OmittedTelemetry() (all []OmittedTelemetry) {
	for _, u := range v.unobserved {
		if !u.failed {
			all = append(all, *u)
		}
	}
	slices.SortFunc(all, func(x, y OmittedTelemetry) int { return x.Key.Compare(y.Key) })
	return all
}

// TelemetryOrigins returns the Telemetries that set what the proxy logs, traces or counts.
func (v *ProxyView) TelemetryOrigins() []resource.Origin {
	return slices.Concat(v.telemetry.client.Origins, v.telemetry.server.Origins)
}

// observed returns the version of a translated resource to publish: without what Telemetries add,
// if the client refused the resource because of that.
func (v *ProxyView) observed(r *resource.Resource) *resource.Resource {
	if u := v.unobserved[r.Key()]; u == nil || u.failed {
		return r
	}
	return translate.WithoutTelemetry(v.world, r)
}

// observeAgain publishes all listeners with what Telemetries add.
func (v *ProxyView) observeAgain() {
	for key := range v.unobserved {
		original := v.original(key)
		delete(v.unobserved, key)
		if original != nil {
			v.emit(original)
		}
	}
}
