package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/xds"
)

// rereadTime is how long Envoy may take to read a certificate again after its file was corrected.
const rereadTime = 2 * time.Second

// rereadPause is the polling interval within rereadTime.
const rereadPause = 50 * time.Millisecond

// streamTime bounds reading the state of the xDS streams.
const streamTime = time.Second

// lostCertificates returns an error that lists the certificates which the live epoch has in memory
// but a new epoch could not load, because their files are invalid.
func lostCertificates(
	ctx context.Context, mesh *discovery.Server, streams *xds.Server, live epoch.Epoch,
) error {
	limited, cancel := context.WithTimeout(ctx, rereadTime)
	defer cancel()
	all, refused := lost(limited, mesh, streams, live.PID)
	for refused && limited.Err() == nil {
		select {
		case <-time.After(rereadPause):
			all, refused = lost(ctx, mesh, streams, live.PID)
		case <-limited.Done():
		}
	}
	if len(all) == 0 {
		return nil
	}
	var problems config.Errors
	for _, p := range slices.SortedFunc(maps.Values(all), discovery.Problem.Compare) {
		fix := "then reload"
		if p.Fix != "" {
			fix = p.Fix + ", " + fix
		}
		message := fmt.Sprintf(
			"a new epoch would lose a certificate that epoch %d has in memory: %s",
			live.Number, p.Message)
		problems = append(problems, &config.Error{Position: config.Position{File: p.File, Line: p.Line},
			Key: p.Object, Message: message, Fix: fix})
	}
	return problems
}

// lost returns, by secret name, the problems that would prevent a new Envoy from loading a secret
// that the Envoy with the pid has. refused reports that some problems are not from the files but
// from the last NACK of that Envoy; the files may have been corrected since.
func lost(
	ctx context.Context, mesh *discovery.Server, streams *xds.Server, pid int,
) (all map[string]discovery.Problem, refused bool) {
	ctx, cancel := context.WithTimeout(ctx, streamTime)
	defer cancel()
	all = mesh.UnreadableSecretFiles()
	held, known := map[string]bool{}, false
	for _, stream := range streams.Status(ctx) {
		if int(stream.Peer.PID) != pid {
			continue
		}
		known = true
		for _, t := range stream.Types {
			for _, name := range t.HeldSecrets {
				held[name] = true
			}
			for _, r := range t.Refused {
				if _, found := all[r.Name]; found || !held[r.Name] || len(r.Origins) == 0 {
					continue
				}
				from := r.Origins[0]
				all[r.Name] = discovery.Problem{File: from.File, Line: from.Line,
					Object:  fmt.Sprintf("%s %s/%s", from.Kind, from.Namespace, from.Name),
					Message: r.Error, Fix: "correct the file"}
				refused = true
			}
		}
	}
	if known { // known is false while Envoy has no xDS stream: its resources are then unknown
		maps.DeleteFunc(all, func(name string, _ discovery.Problem) bool { return !held[name] })
	}
	return all, refused
}
