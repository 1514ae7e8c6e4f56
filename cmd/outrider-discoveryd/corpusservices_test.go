package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts/cluster"
)

// corpusService is a ServiceEntry of the corpus that Kubernetes or Consul can express as a service.
type corpusService struct {
	corpusObject
	host string // host of the Kubernetes Service
	head map[string]any
	spec corpusEntry
}

// corpusEntry has the fields of a ServiceEntry that a Kubernetes Service can express.
type corpusEntry struct {
	Hosts      []string         `json:"hosts"`
	Addresses  []string         `json:"addresses,omitempty"`
	Ports      []corpusPort     `json:"ports"`
	Location   string           `json:"location"`
	Resolution string           `json:"resolution"`
	Endpoints  []corpusEndpoint `json:"endpoints,omitempty"`
	ExportTo   []string         `json:"exportTo,omitempty"`
}

type corpusPort struct {
	Number     int    `json:"number"`
	Name       string `json:"name"`
	Protocol   string `json:"protocol,omitempty"`
	TargetPort int    `json:"targetPort,omitempty"`
}

type corpusEndpoint struct {
	Address        string            `json:"address"`
	Ports          map[string]int    `json:"ports,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Locality       string            `json:"locality,omitempty"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	// Consul only: a Kubernetes Service cannot express the weight
	Weight int `json:"weight,omitempty"`
}

// servicesOf returns the ServiceEntries that Kubernetes Services can express, and the other
// objects, in which the hosts of these ServiceEntries are replaced by the hosts of the Services.
func servicesOf(t *testing.T, objects []corpusObject) (services []corpusService,
	others []corpusObject) {
	t.Helper()
	hosts := map[string]int{}
	for _, o := range objects {
		if s, ok := newCorpusService(t, o); ok && !s.isWeighted() {
			hosts[s.spec.Hosts[0]]++
			services = append(services, s)
		}
	}
	services = slices.DeleteFunc(services, func(s corpusService) bool {
		// ServiceEntries with the same host are merged, which a Service cannot express
		return hosts[s.spec.Hosts[0]] > 1
	})
	converted := map[string]bool{}
	for i, s := range services {
		converted[s.path()] = true
		services[i].host = strings.ReplaceAll(s.spec.Hosts[0], ".", "-") + ".shop.svc.cluster.local"
	}
	for _, o := range objects {
		if converted[o.path()] {
			continue
		}
		for _, s := range services {
			pattern := regexp.MustCompile(`(^|[^\w.-])` + regexp.QuoteMeta(s.spec.Hosts[0]) + `\b`)
			o.text = pattern.ReplaceAll(o.text, []byte("${1}"+s.host))
		}
		others = append(others, o)
	}
	slices.SortFunc(services, func(a, b corpusService) int { return strings.Compare(a.host, b.host) })
	return services, others
}

func newCorpusService(t *testing.T, o corpusObject) (s corpusService, ok bool) {
	t.Helper()
	s = corpusService{corpusObject: o}
	var tree struct {
		Metadata map[string]any
		Spec     json.RawMessage
	}
	if err := json.Unmarshal(o.text, &tree); err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(tree.Spec)))
	decoder.DisallowUnknownFields()
	if o.Kind != "ServiceEntry" || o.Namespace != "shop" || decoder.Decode(&s.spec) != nil ||
		s.spec.Resolution != "STATIC" || len(s.spec.Hosts) != 1 || s.spec.Hosts[0][0] == '*' ||
		slices.ContainsFunc(s.spec.Endpoints, func(e corpusEndpoint) bool {
			_, err := netip.ParseAddr(e.Address)
			return err != nil
		}) {
		return s, false
	}
	s.head = tree.Metadata
	return s, true
}

func (s corpusService) isWeighted() bool {
	return slices.ContainsFunc(s.spec.Endpoints, func(e corpusEndpoint) bool { return e.Weight != 0 })
}

// entry returns the ServiceEntry that is equivalent to the Service that create makes. The addresses
// of the Service are derived from its number i.
func (s corpusService) entry(t *testing.T, i int) corpusObject {
	t.Helper()
	spec := s.spec
	spec.Hosts, spec.Location = []string{s.host}, "MESH_INTERNAL"
	if len(spec.Addresses) > 0 {
		spec.Addresses = []string{s.clusterIP(i)}
	}
	spec.Ports, spec.Endpoints = slices.Clone(spec.Ports), slices.Clone(spec.Endpoints)
	for j := range spec.Ports {
		spec.Ports[j].TargetPort = 0
	}
	for j := range spec.Endpoints {
		e := &spec.Endpoints[j]
		if e.Ports = s.ports(*e); e.inPod() {
			e.Labels = e.podLabels()
		}
		e.Address = endpointAddress(i, j)
	}
	o := s.corpusObject
	o.text = encode(t, map[string]any{"apiVersion": "networking.istio.io/v1",
		"kind": "ServiceEntry", "metadata": s.head, "spec": spec})
	return o
}

func (s corpusService) clusterIP(i int) string {
	if len(s.spec.Addresses) == 0 {
		return "None"
	}
	return fmt.Sprintf("10.96.100.%d", i+1)
}

// endpointAddress returns the address of endpoint j of service i. It is not a loopback address,
// because the API server refuses those.
func endpointAddress(i, j int) string { return fmt.Sprintf("10.127.%d.%d", i, j+1) }

// ports returns the ports of an endpoint by name.
func (s corpusService) ports(e corpusEndpoint) map[string]int {
	ports := map[string]int{}
	for _, port := range s.spec.Ports {
		ports[port.Name] = port.Number
		if port.TargetPort != 0 {
			ports[port.Name] = port.TargetPort
		}
		if number, ok := e.Ports[port.Name]; ok {
			ports[port.Name] = number
		}
	}
	return ports
}

// inPod reports whether the endpoint needs a Pod, which provides the labels, the locality and the
// service account that an EndpointSlice cannot express.
func (e corpusEndpoint) inPod() bool {
	return len(e.Labels) > 0 || e.Locality != "" || e.ServiceAccount != ""
}

// podLabels returns the labels of the endpoint's pod.
func (e corpusEndpoint) podLabels() map[string]string {
	labels := map[string]string{"security.istio.io/tlsMode": "disabled"}
	maps.Copy(labels, e.Labels)
	if e.Locality != "" {
		labels["istio-locality"] = strings.ReplaceAll(e.Locality, "/", ".")
	}
	return labels
}

// create creates the Service, and for each endpoint an EndpointSlice and, if needed, a Pod.
func (s corpusService) create(t *testing.T, c *cluster.Cluster, i int) {
	t.Helper()
	name, _, _ := strings.Cut(s.host, ".")
	create := func(kind, version, name string, metadata, rest map[string]any) {
		metadata["name"], metadata["namespace"] = name, "shop"
		rest["apiVersion"], rest["kind"], rest["metadata"] = version, kind, metadata
		createObject(t, c, corpusObject{kind, "shop", name, encode(t, rest)})
	}
	metadata := map[string]any{"labels": s.head["labels"], "annotations": map[string]any{
		"networking.istio.io/exportTo": strings.Join(s.spec.ExportTo, ",")}}
	var ports []map[string]any
	for _, port := range s.spec.Ports {
		one := map[string]any{"name": port.Name, "port": port.Number}
		if port.Protocol != "" {
			one["appProtocol"] = strings.ToLower(port.Protocol)
		}
		ports = append(ports, one)
	}
	create("Service", "v1", name, metadata, map[string]any{"spec": map[string]any{
		"clusterIP": s.clusterIP(i), "ports": ports}})
	for j, e := range s.spec.Endpoints {
		endpoint := map[string]any{"addresses": []string{endpointAddress(i, j)}}
		part := fmt.Sprintf("%s-%d", name, j)
		if e.inPod() {
			create("Pod", "v1", part, map[string]any{"labels": e.podLabels()}, map[string]any{
				"spec": map[string]any{"nodeName": "none", "serviceAccountName": e.ServiceAccount,
					"containers": []any{map[string]any{"name": "c", "image": "i"}}}})
			endpoint["targetRef"] = map[string]any{"kind": "Pod", "name": part}
		}
		var slicePorts []map[string]any
		for name, number := range s.ports(e) {
			slicePorts = append(slicePorts, map[string]any{"name": name, "port": number})
		}
		create("EndpointSlice", "discovery.k8s.io/v1", part, map[string]any{"labels": map[string]any{
			"kubernetes.io/service-name": name}}, map[string]any{"addressType": "IPv4",
			"ports": slicePorts, "endpoints": []any{endpoint}})
	}
}
