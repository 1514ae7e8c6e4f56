package backend

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/relay"
)

// statusTime bounds reading the state of the xDS streams.
const statusTime = time.Second

// ResourceTypes returns the state of each resource type on the xDS stream of each running epoch.
func (b *Backend) ResourceTypes(ctx context.Context) ([]api.ResourceType, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	numbers := map[int]int{} // PID → epoch number
	for _, e := range b.Supervisor.Epochs() {
		if e.State != epoch.Exited {
			numbers[e.PID] = e.Number
		}
	}
	types := []api.ResourceType{}
	for _, stream := range b.XDS.Status(ctx) {
		number, ours := numbers[int(stream.Peer.PID)]
		if !ours {
			continue
		}
		for _, t := range stream.Types {
			shown := api.ResourceType{Epoch: number, Type: t.Type, Version: t.VersionAccepted,
				Resources: t.Names, State: "accepted", Since: t.Accepted, Source: "embedded"}
			if t.VersionAccepted != t.VersionSent || t.Pending > 0 {
				shown.State, shown.Since = "pending", t.Sent
			}
			if feed, err := b.Discovery.Feed(stream.Node); t.Wildcard && err == nil {
				snapshot, _ := feed.Current()
				shown.Resources = len(snapshot.Set(t.Type))
			}
			for _, refused := range t.Refused {
				shown.State, shown.Since = "refused", refused.Since
				shown.Refused, shown.RefusedVersion = refused.Error, refused.Version
				shown.RefusedResource = append(shown.RefusedResource, refused.Name)
			}
			slices.Sort(shown.RefusedResource)
			types = append(types, shown)
		}
	}
	for _, t := range b.Relay.Types(ctx) {
		if number, ours := numbers[int(t.PID)]; ours {
			types = append(types, relayedType(number, t))
		}
	}
	return types, nil
}

// relayedType describes a type that comes from the upstream server or its cache.
func relayedType(number int, t relay.Type) api.ResourceType {
	shown := api.ResourceType{Epoch: number, Type: t.URL, Version: t.Version,
		Resources: t.Resources, State: "accepted", Since: t.Accepted, Source: "upstream",
		Refused: t.Refused, RefusedVersion: t.RefusedVersion}
	if t.Cached {
		shown.Source = "cache"
	}
	switch {
	case t.Refused != "":
		shown.State, shown.Since = "refused", t.Sent
	case t.Pending || t.Accepted.IsZero():
		shown.State, shown.Since = "pending", t.Sent
	}
	return shown
}

// UpstreamDebug returns debug information of the upstream server.
func (b *Backend) UpstreamDebug(ctx context.Context, name string) (json.RawMessage, error) {
	text, err := b.Relay.Debug(ctx, name)
	if err != nil {
		return nil, api.Refuse(err.Error())
	}
	if !json.Valid(text) {
		return json.Marshal(string(text))
	}
	return text, nil
}
