package translate

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"outrider.org/outrider/agent/discovery/model"
)

// group holds endpoints that share locality and priority.
type group struct {
	where     model.Locality
	priority  int
	weight    uint32 // weight relative to other groups of the same priority
	endpoints []model.Endpoint
}

// byLocality groups endpoints by locality, in order of first appearance.
func byLocality(endpoints []model.Endpoint) []group {
	var groups []group
	index := map[model.Locality]int{}
	for _, e := range endpoints {
		at, known := index[e.Locality]
		if !known {
			at = len(groups)
			index[e.Locality] = at
			groups = append(groups, group{where: e.Locality})
		}
		groups[at].endpoints = append(groups[at].endpoints, e)
		groups[at].weight = addWeight(groups[at].weight, e.Weight)
	}
	return groups
}

// addWeight returns the sum of two weights, or the maximum if that overflows.
func addWeight(a, b uint32) uint32 {
	if sum := a + b; sum >= a {
		return sum
	}
	return unlimited
}

// assignment returns a ClusterLoadAssignment with groups of endpoints. mutual reports whether an
// endpoint gets the metadata for automatic mutual TLS (nil: none does). labels returns the metadata
// for labels of metrics (nil: none).
func assignment(name string, groups []group, mutual func(*model.Endpoint) bool,
	labels func(*model.Endpoint) *structpb.Struct) *endpointv3.ClusterLoadAssignment {
	out := &endpointv3.ClusterLoadAssignment{ClusterName: name,
		Endpoints: make([]*endpointv3.LocalityLbEndpoints, 0, len(groups))}
	for _, g := range groups {
		encoded := &endpointv3.LocalityLbEndpoints{Locality: locality(g.where),
			Priority:            uint32(g.priority),
			LoadBalancingWeight: wrapperspb.UInt32(g.weight),
			LbEndpoints:         make([]*endpointv3.LbEndpoint, 0, len(g.endpoints))}
		for i := range g.endpoints {
			e := &g.endpoints[i]
			var metadata *corev3.Metadata
			if mutual != nil && mutual(e) {
				metadata = mutualEndpoint
			}
			if labels != nil {
				metadata = withLabels(metadata, labels(e))
			}
			encoded.LbEndpoints = append(encoded.LbEndpoints, &endpointv3.LbEndpoint{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
					Address: endpointAddress(e)}},
				LoadBalancingWeight: wrapperspb.UInt32(e.Weight), Metadata: metadata,
			})
		}
		out.Endpoints = append(out.Endpoints, encoded)
	}
	return out
}

func endpointAddress(e *model.Endpoint) *corev3.Address {
	if path, ok := strings.CutPrefix(e.Address, model.UnixScheme); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return socketAddress(e.Address, e.Port)
}

func locality(where model.Locality) *corev3.Locality {
	if where == (model.Locality{}) {
		return nil
	}
	return &corev3.Locality{Region: where.Region, Zone: where.Zone, SubZone: where.Subzone}
}
