package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
)

// lostCertificates returns an error for the certificates that the live epoch has in memory and that
// a new epoch could not read from their files: it would serve without them.
func (a *Agent) lostCertificates(ctx context.Context) error {
	live, ok := a.proxy.liveEpoch()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	lost := a.discovery.Unreadable()
	held, known := map[string]bool{}, false
	for _, stream := range a.xds.Status(ctx) {
		if int(stream.Peer.PID) != live.PID {
			continue
		}
		known = true
		for _, t := range stream.Types {
			for _, name := range t.Held {
				held[name] = true
			}
			for _, refused := range t.Refused {
				_, found := lost[refused.Name]
				if !found && held[refused.Name] && len(refused.Origins) > 0 {
					from := refused.Origins[0]
					lost[refused.Name] = discovery.Problem{File: from.File, Line: from.Line,
						Object:  fmt.Sprintf("%s %s/%s", from.Kind, from.Namespace, from.Name),
						Message: refused.Error, Cure: "correct the file"}
				}
			}
		}
	}
	if known { // else its Envoy is about to reconnect
		maps.DeleteFunc(lost, func(name string, _ discovery.Problem) bool { return !held[name] })
	}
	if len(lost) == 0 {
		return nil
	}
	var all config.Errors
	for _, p := range slices.SortedFunc(maps.Values(lost), discovery.Problem.Compare) {
		cure := "then reload"
		if p.Cure != "" {
			cure = p.Cure + ", " + cure
		}
		message := fmt.Sprintf("a new epoch would lose a certificate that epoch %d has in memory: %s",
			live.Number, p.Message)
		all = append(all, &config.Error{Position: config.Position{File: p.File, Line: p.Line},
			Key: p.Object, Message: message, Cure: cure})
	}
	return all
}
