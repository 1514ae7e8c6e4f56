package translate

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

const unixScheme = "unix://"

// localities are the endpoints of a port that have the given labels, grouped by where they are, in the order in which
// they are written. Entries with DNS and no endpoints stand for their own host.
func localities(service *model.Service, port *model.Port, labels map[string]string) []*endpointv3.LocalityLbEndpoints {
	endpoints := port.Entry.Endpoints
	if len(endpoints) == 0 && port.Entry.Resolution != networking.ServiceEntry_STATIC {
		endpoints = []*networking.WorkloadEntry{{Address: service.Host}}
	}
	var groups []*endpointv3.LocalityLbEndpoints
	byName := map[string]*endpointv3.LocalityLbEndpoints{}
	for _, e := range endpoints {
		if !model.Selects(labels, e.Labels) {
			continue
		}
		group := byName[e.Locality]
		if group == nil {
			group = &endpointv3.LocalityLbEndpoints{Locality: locality(e.Locality), LoadBalancingWeight: &wrapperspb.UInt32Value{}}
			byName[e.Locality] = group
			groups = append(groups, group)
		}
		weight := max(e.Weight, 1)
		group.LoadBalancingWeight.Value += weight
		group.LbEndpoints = append(group.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: endpointAddress(e, port)}},
			LoadBalancingWeight: wrapperspb.UInt32(weight),
		})
	}
	return groups
}

func endpointAddress(e *networking.WorkloadEntry, port *model.Port) *corev3.Address {
	if path, ok := strings.CutPrefix(e.Address, unixScheme); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	number := port.Target
	if own := e.Ports[port.Name]; own != 0 {
		number = own
	}
	return socketAddress(e.Address, number)
}

// locality reads region/zone/subzone.
func locality(text string) *corev3.Locality {
	if text == "" {
		return nil
	}
	parts := append(strings.SplitN(text, "/", 3), "", "")
	return &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
}
