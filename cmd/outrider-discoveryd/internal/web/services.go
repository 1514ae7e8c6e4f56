package web

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/model"
)

// Service describes the service that a host name has in one namespace.
type Service struct {
	Host      string   `json:"host"`
	Namespace string   `json:"namespace"`
	Ports     []string `json:"ports"` // each as "NUMBER NAME", such as "80 http"
	// oldest ServiceEntry of the service, as "ServiceEntry NAMESPACE/NAME"
	Object string `json:"object"`
	// file and line of Object, or the source that delivered it
	Source string `json:"from"`
	// number of endpoints that receive requests, and of unhealthy ones, which receive none
	Healthy   int        `json:"healthy"`
	Unhealthy int        `json:"unhealthy"`
	Endpoints []Endpoint `json:"endpoints"` // at most shownEndpoints, unhealthy ones first
}

// HiddenEndpoints returns the number of endpoints that Endpoints omits.
func (s Service) HiddenEndpoints() int { return s.Healthy + s.Unhealthy - len(s.Endpoints) }

// Endpoint is an endpoint of a service.
type Endpoint struct {
	Address string `json:"address"`
	Healthy bool   `json:"healthy"`
	Object  string `json:"object,omitempty"` // WorkloadEntry of an unhealthy endpoint
}

// shownEndpoints is the maximum number of endpoints of a service in an answer.
const shownEndpoints = 50

func sortServices(services []*model.Service) []*model.Service {
	slices.SortFunc(services, func(x, y *model.Service) int {
		return cmp.Or(cmp.Compare(x.Host, y.Host), cmp.Compare(x.Namespace, y.Namespace))
	})
	return services
}

// service returns the description of a service with its endpoints.
func (s *snapshot) service(of *model.Service) Service {
	oldest := of.OldestServiceEntry()
	shown := Service{Host: of.Host, Namespace: of.Namespace, Object: oldest.String(),
		Source: oldest.Position(), Healthy: of.EndpointCount(), Ports: []string{}, Endpoints: []Endpoint{}}
	for _, p := range of.Ports {
		shown.Ports = append(shown.Ports, strconv.Itoa(int(p.Number))+" "+p.Name)
	}
	for _, w := range s.of.UnhealthyWorkloads {
		if !of.SelectsWorkload(w.Namespace, model.WorkloadLabels(w)) {
			continue
		}
		if shown.Unhealthy++; len(shown.Endpoints) < shownEndpoints {
			shown.Endpoints = append(shown.Endpoints, Endpoint{Object: w.String(),
				Address: address(w.Spec.(*networking.WorkloadEntry))})
		}
	}
	for e := range of.EachEndpoint {
		if len(shown.Endpoints) >= shownEndpoints {
			break
		}
		shown.Endpoints = append(shown.Endpoints, Endpoint{Address: address(e), Healthy: true})
	}
	return shown
}

// address returns the address of an endpoint, followed by its port numbers if it has its own ports.
func address(e *networking.WorkloadEntry) string {
	if len(e.Ports) == 0 {
		return e.Address
	}
	ports := make([]string, 0, len(e.Ports))
	for _, number := range e.Ports {
		ports = append(ports, strconv.Itoa(int(number)))
	}
	slices.Sort(ports)
	return e.Address + " " + strings.Join(ports, ", ")
}
