package backend

import (
	"context"
	"slices"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/epoch"
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
	return types, nil
}
