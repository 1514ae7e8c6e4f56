package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/status"
	"outrider.org/outrider/agent/xds"
)

// ResourceOperations performs the operations on Envoy's resources and its admin interface.
type ResourceOperations struct {
	Supervisor *epoch.Supervisor
	Discovery  *discovery.Server
	XDS        *xds.Server
	Relay      *relay.Server // in use if the configuration has an upstream server
	AdminView  *status.AdminView
}

// statusTime bounds reading the state of the xDS streams.
const statusTime = time.Second

// ResourceTypes returns the state of each resource type on the xDS stream of each running epoch.
func (o ResourceOperations) ResourceTypes(ctx context.Context) ([]api.ResourceType, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	numbers := map[int]int{} // PID → epoch number
	for _, e := range o.Supervisor.Epochs() {
		if e.State != epoch.StateExited {
			numbers[e.PID] = e.Number
		}
	}
	types := []api.ResourceType{}
	for _, stream := range o.XDS.Status(ctx) {
		number, ours := numbers[int(stream.Peer.PID)]
		if !ours {
			continue
		}
		for _, t := range stream.Types {
			shown := api.ResourceType{Epoch: number, Type: t.Type, Version: t.VersionAccepted,
				Resources: t.Names, State: "accepted", Since: t.AcceptedAt, Source: "embedded"}
			if t.VersionAccepted != t.VersionSent || t.Pending > 0 {
				shown.State, shown.Since = "pending", t.SentAt
			}
			if feed, err := o.Discovery.Feed(stream.Node); t.Wildcard && err == nil {
				snapshot, _ := feed.Current()
				shown.Resources = len(snapshot.ByType(t.Type))
			}
			for _, refused := range t.Refused {
				shown.State, shown.Since = "refused", refused.Since
				shown.RefusalReason, shown.RefusedVersion = refused.Error, refused.Version
				shown.RefusedResources = append(shown.RefusedResources, refused.Name)
			}
			slices.Sort(shown.RefusedResources)
			types = append(types, shown)
		}
	}
	for _, t := range o.Relay.Types(ctx) {
		if number, ours := numbers[int(t.PID)]; ours {
			types = append(types, relayedType(number, t))
		}
	}
	return types, nil
}

// relayedType describes a type that comes from the upstream server or its cache.
func relayedType(number int, t relay.TypeStatus) api.ResourceType {
	shown := api.ResourceType{Epoch: number, Type: t.URL, Version: t.Version,
		Resources: t.Resources, State: "accepted", Since: t.Accepted, Source: "upstream",
		RefusalReason: t.RefusalReason, RefusedVersion: t.RefusedVersion}
	if t.Cached {
		shown.Source = "cache"
	}
	switch {
	case t.RefusalReason != "":
		shown.State, shown.Since = "refused", t.Sent
	case t.Pending || t.Accepted.IsZero():
		shown.State, shown.Since = "pending", t.Sent
	}
	return shown
}

// UpstreamDebug returns debug information of the upstream server.
func (o ResourceOperations) UpstreamDebug(ctx context.Context, name string) (json.RawMessage,
	error) {
	text, err := o.Relay.QueryDebug(ctx, name)
	if err != nil {
		return nil, api.NewRefusal(err.Error())
	}
	if !json.Valid(text) {
		return json.Marshal(string(text))
	}
	return text, nil
}

// Admin sends a GET to the live epoch's admin interface through o.AdminView, which removes
// credentials from the response.
func (o ResourceOperations) Admin(ctx context.Context, path, query string) (api.AdminResponse,
	error) {
	answer, number, err := o.AdminView.Get(ctx, "/"+path, query) //nolint:bodyclose // by the server
	if err != nil {
		return api.AdminResponse{}, api.NewRefusal(err.Error())
	}
	return api.AdminResponse{Epoch: number, Status: answer.StatusCode,
		ContentType: answer.Header.Get("Content-Type"), Body: answer.Body}, nil
}

// Report returns the agent's own part of a bug report.
func (o ResourceOperations) Report(context.Context) ([]api.ReportFile, error) {
	build := "not known"
	if info, ok := debug.ReadBuildInfo(); ok {
		build = info.String()
	}
	return []api.ReportFile{{Name: "build.txt", Text: build},
		{Name: "xds-counters.txt", Text: fmt.Sprintf("%+v\n", o.XDS.Stats())}}, nil
}
