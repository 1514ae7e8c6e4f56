package view

import (
	"fmt"
	"slices"

	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/translate"
)

// telemetryReader identifies the services that receive logs and spans as a reader in readers.
const telemetryReader = "\x00telemetry"

// telemetry configures what a proxy's listeners log and trace. Listeners of a gateway have the mode
// CLIENT.
type telemetry struct {
	client, server translate.Telemetry
	made           bool
}

// update translates the Telemetries again if a change affects them, and then all listeners if the
// result differs.
func (t *telemetry) update(v *ProxyView, touched model.ChangeSummary) {
	stale := !t.made || touched.TelemetriesChanged || touched.SidecarsChanged
	for _, host := range slices.Concat(t.client.HostsRead, t.server.HostsRead) {
		_, ok := touched.ChangedHosts[host]
		stale = stale || ok
	}
	if !stale {
		return
	}
	first, before := !t.made, *t
	t.make(v)
	if !first && !(t.client.Equal(&before.client) && t.server.Equal(&before.server)) {
		v.observeAgain()
		v.kind.relisten(v)
	}
}

func (t *telemetry) make(v *ProxyView) {
	t.made = true
	t.client = translate.Telemetries(v.world, v.node, model.ClientMode)
	t.server = translate.Telemetry{}
	if v.node.Type == model.Sidecar {
		t.server = translate.Telemetries(v.world, v.node, model.ServerMode)
	}
	problems := slices.Concat(t.client.Problems, t.server.Problems)
	for o, by := range v.world.ShadowedTelemetries(v.node) {
		problems = append(problems, o.Warning("selector", fmt.Sprintf("has no effect: %s at %s is "+
			"for the same namespace, is older and takes precedence", by.Key, by.Position()),
			"write one Telemetry without a selector in a namespace"))
	}
	v.report("telemetry", dedupe(problems))
}

// reads returns the hosts that get logs and spans.
func (t *telemetry) reads() map[string]struct{} {
	reads := map[string]struct{}{}
	for _, host := range slices.Concat(t.client.HostsRead, t.server.HostsRead) {
		reads[host] = struct{}{}
	}
	return reads
}
