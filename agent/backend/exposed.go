package backend

import (
	"maps"
	"slices"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
)

// exposed returns a problem for each port that other hosts reach past mutual TLS.
func (b *Backend) exposed() []discovery.Problem {
	var problems []discovery.Problem
	for _, e := range b.Exposure.Report().Exposed {
		p := object.ProblemAt(e.By, condition.Error, e.String(), e.Fix)
		if e.By.Kind == "" { // an upstream server's
			p.File, p.Line, p.Object = "", 0, ""
		}
		problems = append(problems, p)
	}
	return problems
}

// maxOlder bounds the peers that a status names.
const maxOlder = 20

// addOutside adds what is outside mutual TLS on purpose, or because it is older than the rules.
func (b *Backend) addOutside(status *api.Status) {
	for _, o := range b.Exposure.Report().Outside {
		status.OutsideMutualTLS = append(status.OutsideMutualTLS, api.OutsidePort(o))
	}
	older := b.Exposure.Older()
	for _, o := range older[:min(len(older), maxOlder)] {
		status.OlderConnections = append(status.OlderConnections, api.OlderConnections{
			Port: o.Port, Peer: o.Peer, Count: o.Count})
	}
	rest := map[uint16]int{}
	for _, o := range older[min(len(older), maxOlder):] {
		rest[o.Port] += o.Count
	}
	for _, port := range slices.Sorted(maps.Keys(rest)) {
		status.OlderConnections = append(status.OlderConnections,
			api.OlderConnections{Port: port, Count: rest[port]})
	}
}
