package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// lostCertificates returns an error for the certificates that the live epoch has in memory and that
// a new epoch could not read from their files: it would serve without them.
func (a *Agent) lostCertificates(ctx context.Context) error {
	live, ok := a.proxy.liveEpoch()
	if !ok {
		return nil
	}
	lost := a.discovery.Unreadable()
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	for _, stream := range a.xds.Status(ctx) {
		if int(stream.Peer.PID) != live.PID {
			continue
		}
		for _, t := range stream.Types {
			for _, refused := range t.Refused {
				switch _, known := lost[refused.Name]; {
				case t.Type != resource.SecretType:
				case refused.Accepted == "":
					delete(lost, refused.Name) // the live epoch does not have it either
				case !known && len(refused.Origins) > 0:
					from := refused.Origins[0]
					lost[refused.Name] = discovery.Problem{File: from.File, Line: from.Line,
						Object:  fmt.Sprintf("%s %s/%s", from.Kind, from.Namespace, from.Name),
						Message: refused.Error, Cure: "correct the file"}
				}
			}
		}
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
