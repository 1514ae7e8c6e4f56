package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/ports"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// xdsObserver implements xds.Observer. It converts ACKs, NACKs and other events of Envoy's streams
// to conditions, events and log lines, and reports them to the discovery server.
type xdsObserver struct {
	board     *condition.Registry
	log       *slog.Logger
	discovery *discovery.Server
	refused   *xds.RefusalConditions
	ports     *ports.PortTracker
	unbound   *ports.UnboundListeners
}

func newXDSObserver(board *condition.Registry, log *slog.Logger, server *discovery.Server,
	tracker *ports.PortTracker, unbound *ports.UnboundListeners) xdsObserver {
	refused := xds.NewRefusalConditions(board, conditionResourcesRefused, "")
	return xdsObserver{board, log, server, refused, tracker, unbound}
}

// maxShown bounds the versions and listeners in a message: one mistake can invalidate hundreds of
// resources.
const maxShown = 3

// conditionResourcesRefused returns the condition code for refused resources of a type.
func conditionResourcesRefused(typeURL string) string {
	return "resources-refused-" + strings.ToLower(resource.TypeName(typeURL))
}

// OnConnect logs a new stream.
func (o xdsObserver) OnConnect(stream xds.Stream) {
	o.log.Debug("Envoy connected", "service", stream.Service, "pid", stream.Peer.PID, "delta",
		stream.Delta)
}

// OnDisconnect logs the end of a stream and removes its refusals.
func (o xdsObserver) OnDisconnect(stream xds.Stream, err error) {
	o.refused.RemoveStream(stream.ID)
	o.unbound.OnStreamEnd(stream)
	o.discovery.RecordStreamEnd(stream.ID)
	o.log.Debug("Envoy disconnected", "service", stream.Service, "pid", stream.Peer.PID,
		"error", err)
}

// OnPush logs a response.
func (o xdsObserver) OnPush(stream xds.Stream, push xds.Push) {
	o.log.Debug("xDS response sent", "pid", stream.Peer.PID, "type",
		resource.TypeName(push.Type), "version", push.Version, "resources", push.Resources,
		"removed", len(push.Removed), "bytes", push.Bytes)
}

// OnAck logs an ACK and notifies the discovery server and the trackers of ports.
func (o xdsObserver) OnAck(stream xds.Stream, typeURL, version string) {
	o.discovery.RecordAck(stream.ID, stream.Node)
	o.ports.OnAck(stream.Node, typeURL)
	o.unbound.OnAck(stream, typeURL)
	o.log.Debug("xDS response accepted", "pid", stream.Peer.PID, "type",
		resource.TypeName(typeURL), "version", version)
}

// OnNack reports a NACK, with the refused resources and the objects of the mesh configuration from
// which they were translated.
func (o xdsObserver) OnNack(stream xds.Stream, refusal xds.Refusal) {
	rest, fresh := o.unbound.OnNack(stream, refusal)
	if !fresh {
		return // Envoy tried again to bind ports that are still in use, which was reported before
	}
	rest.Error = rest.OneLineError()
	refusal.Error = refusal.OneLineError()
	var origins []string
	for _, origin := range refusal.Origins {
		origins = append(origins, origin.String())
	}
	sentence := describeRefusal(refusal, origins)
	level := slog.LevelError
	if len(origins) > 0 {
		// The refusal is also logged as a problem of the mesh configuration, with file and line.
		level = slog.LevelDebug
	}
	o.log.Log(context.Background(), level, "Envoy refused resources", "pid", stream.Peer.PID,
		"type", resource.TypeName(refusal.Type), "resources", strings.Join(refusal.Resources, ", "),
		"error", refusal.Error, "from", strings.Join(origins, ", "))
	if len(rest.Resources) == len(refusal.Resources) {
		o.refuse(stream, rest, sentence)
	} else if len(rest.Resources) > 0 {
		o.refuse(stream, rest, describeRefusal(rest, nil))
	}
	o.board.Publish(condition.Event{Kind: condition.KindResourcesRefused, Sentence: sentence,
		Fields: map[string]string{
			"type": refusal.Type, "error": refusal.Error,
			"resources": strings.Join(refusal.Resources,
				" "), "origins": strings.Join(origins, "\n")}})
}

// describeRefusal returns a sentence about a refusal.
func describeRefusal(refusal xds.Refusal, origins []string) string {
	sentence := fmt.Sprintf("Envoy refused %s %s: %s; %s", resource.TypeName(refusal.Type),
		strings.Join(refusal.Resources, ", "), refusal.Error, inUse(refusal))
	if len(origins) > 0 {
		sentence += " (from " + strings.Join(origins, ", ") + ")"
	}
	return sentence
}

// refuse records refused resources. It raises a condition only for resources without origins; a
// refusal of others is reported as a problem of the mesh configuration.
func (o xdsObserver) refuse(stream xds.Stream, refusal xds.Refusal, sentence string) {
	if len(refusal.Resources) > 0 && len(refusal.Origins) > 0 {
		sentence = ""
	}
	o.refused.Add(stream.ID, refusal.Type, refusal.Resources, sentence)
}

// inUse describes what Envoy uses in place of the refused resources.
func inUse(refusal xds.Refusal) string {
	switch retained := slices.DeleteFunc(slices.Clone(refusal.VersionsInUse),
		func(version string) bool { return version == "" }); {
	case len(retained) == 0 && len(refusal.VersionsInUse) > 0:
		return "there is no previous version"
	case len(retained) == 1 && len(refusal.VersionsInUse) == 1:
		return "the previous version stays in use (" + retained[0] + ")"
	case len(retained) < len(refusal.VersionsInUse):
		return fmt.Sprintf("of %d resources the previous version stays in use (%s), "+
			"the others have none", len(retained),
			strings.Join(retained[:min(len(retained), maxShown)], ", "))
	case len(retained) > 0:
		return "the previous versions stay in use (" +
			strings.Join(retained[:min(len(retained), maxShown)], ", ") + ")"
	}
	return "the previous version stays in use"
}

// OnNackResolved records that a stream accepts resources again.
func (o xdsObserver) OnNackResolved(stream xds.Stream, typeURL string, names []string) {
	o.unbound.OnNackResolved(stream, typeURL, names)
	if accepted := o.refused.RemoveAccepted(stream.ID, typeURL, names); len(accepted) > 0 {
		o.log.Info("Envoy accepted resources that it had refused", "pid", stream.Peer.PID,
			"type", resource.TypeName(typeURL), "resources", strings.Join(accepted, ", "))
	}
}
