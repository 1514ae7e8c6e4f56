package debug

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
)

// synced has the JSON form of istiod's SyncStatus: what was sent to a proxy and what the proxy has
// acknowledged. The values are versions, istiod's are nonces. In both cases the two are equal if
// the proxy has accepted everything.
type synced struct {
	ClusterID     string                  `json:"cluster_id,omitempty"`
	ProxyID       string                  `json:"proxy"`
	ProxyType     string                  `json:"proxy_type,omitempty"`
	IstioVersion  string                  `json:"istio_version,omitempty"`
	ClusterSent   string                  `json:"cluster_sent,omitempty"`
	ClusterAcked  string                  `json:"cluster_acked,omitempty"`
	ListenerSent  string                  `json:"listener_sent,omitempty"`
	ListenerAcked string                  `json:"listener_acked,omitempty"`
	RouteSent     string                  `json:"route_sent,omitempty"`
	RouteAcked    string                  `json:"route_acked,omitempty"`
	EndpointSent  string                  `json:"endpoint_sent,omitempty"`
	EndpointAcked string                  `json:"endpoint_acked,omitempty"`
	Resources     map[string]syncedByType `json:"resources,omitempty"`
}

type syncedByType struct {
	Sent      string    `json:"sent,omitempty"`
	Acked     string    `json:"acked,omitempty"`
	SentTime  time.Time `json:"sentTime,omitzero"`
	LastError string    `json:"lastError,omitempty"`
	Refused   []string  `json:"refused,omitempty"`
}

// maxRefused bounds the number of refused resources per type in an answer.
const maxRefused = 10

// proxies returns the states of the proxies' streams, sorted by node ID. It omits streams without
// resource types, such as those that request debug information.
func (d *Debugger) proxies(ctx context.Context) []xds.StreamStatus {
	all := slices.DeleteFunc(d.options.XDS.Status(ctx), func(s xds.StreamStatus) bool {
		return len(s.Types) == 0
	})
	slices.SortStableFunc(all, func(x, y xds.StreamStatus) int {
		return strings.Compare(x.Node.GetId(), y.Node.GetId())
	})
	return all
}

func metadata(node *corev3.Node, key string) string {
	return node.GetMetadata().GetFields()[key].GetStringValue()
}

func (d *Debugger) syncz(ctx context.Context, query url.Values) (any, error) {
	namespace, all := query.Get("namespace"), []synced{}
	for _, stream := range d.proxies(ctx) {
		node := stream.Node
		if namespace != "" && namespace != metadata(node, "NAMESPACE") {
			continue
		}
		kind, _, _ := strings.Cut(node.GetId(), "~")
		of := synced{ProxyID: node.GetId(), ProxyType: kind, ClusterID: metadata(node, "CLUSTER_ID"),
			IstioVersion: metadata(node, "ISTIO_VERSION"), Resources: map[string]syncedByType{}}
		for _, t := range stream.Types {
			one := syncedByType{Sent: t.VersionSent, Acked: t.VersionAccepted, SentTime: t.SentAt}
			for _, refused := range t.Refused[:min(len(t.Refused), maxRefused)] {
				one.Refused = append(one.Refused, refused.Name)
				one.LastError = refused.Error
			}
			of.Resources[t.Type] = one
			switch t.Type {
			case resource.ClusterType:
				of.ClusterSent, of.ClusterAcked = one.Sent, one.Acked
			case resource.ListenerType:
				of.ListenerSent, of.ListenerAcked = one.Sent, one.Acked
			case resource.RouteType:
				of.RouteSent, of.RouteAcked = one.Sent, one.Acked
			case resource.EndpointType:
				of.EndpointSent, of.EndpointAcked = one.Sent, one.Acked
			}
		}
		all = append(all, of)
	}
	return all, nil
}

// clientConfigs returns the information of syncz as ClientConfig messages for istioctl.
func (d *Debugger) clientConfigs(ctx context.Context) ([]*resource.Resource, error) {
	var all []*resource.Resource
	for _, stream := range d.proxies(ctx) {
		fields := map[string]*structpb.Value{}
		for _, key := range []string{"CLUSTER_ID", "NAMESPACE", "ISTIO_VERSION"} {
			fields[key] = structpb.NewStringValue(metadata(stream.Node, key))
		}
		config := &statusv3.ClientConfig{Node: &corev3.Node{Id: stream.Node.GetId(),
			Metadata: &structpb.Struct{Fields: fields}}}
		for _, t := range stream.Types {
			one := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: t.Type,
				ConfigStatus: statusv3.ConfigStatus_STALE, LastUpdated: timestamppb.New(t.SentAt)}
			switch {
			case len(t.Refused) > 0:
				one.ConfigStatus = statusv3.ConfigStatus_ERROR
				one.ErrorState = &adminv3.UpdateFailureState{Details: t.Refused[0].Error,
					LastUpdateAttempt: timestamppb.New(t.Refused[0].Since)}
			case t.VersionSent == "":
				one.ConfigStatus = statusv3.ConfigStatus_NOT_SENT
			case t.VersionSent == t.VersionAccepted:
				one.ConfigStatus = statusv3.ConfigStatus_SYNCED
			}
			config.GenericXdsConfigs = append(config.GenericXdsConfigs, one)
		}
		r, err := resource.New(config.Node.Id, config)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		all = append(all, r)
	}
	return all, nil
}

type connected struct {
	ID       uint64    `json:"connectionId"`
	Since    time.Time `json:"connectedAt"`
	Address  string    `json:"address"`
	Proxy    string    `json:"proxy"`
	Identity string    `json:"identity,omitempty"`
	Service  string    `json:"service"`
	Delta    bool      `json:"delta"`
}

func (d *Debugger) connections(ctx context.Context, _ url.Values) (any, error) {
	all := []connected{}
	for _, s := range d.options.XDS.Status(ctx) {
		all = append(all, connected{s.ID, s.OpenedAt, s.Peer.Address, s.Node.GetId(),
			s.Peer.Identity,
			s.Service, s.Delta})
	}
	return struct {
		Total   int         `json:"totalClients"`
		Clients []connected `json:"clients"`
	}{len(all), all}, nil
}
