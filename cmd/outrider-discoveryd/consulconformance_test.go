package main

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/consul"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source"
	"outrider.org/outrider/scripts/parts/catalog"
)

// consulDomain is the domain of the services' hosts, NAME.test in the corpus.
const consulDomain = "test"

// TestConformance_ConsulGivesTheSameResources registers those ServiceEntries of the corpus that
// Consul can express as services in Consul. All other objects come from another source. The
// resources of a proxy do not differ from those of the original objects.
func TestConformance_ConsulGivesTheSameResources(t *testing.T) {
	server := catalog.Start(t, catalog.Options{})
	total, weighted := 0, 0
	for _, g := range groups(t) {
		services, others := consulServicesOf(t, g.objects)
		if total += len(services); len(services) == 0 {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			inFiles := slices.Clone(others)
			for _, s := range services {
				inFiles = append(inFiles, s.consulEntry(t))
				if s.isWeighted() {
					weighted++
				}
			}
			compareGroup(t, g, inFiles, map[string]deliver{"others": func(t *testing.T, _ group,
				_ *discovery.Server, sink source.Sink) {
				batch := discovery.SourceUpdate{Source: "others", Complete: true}
				for _, o := range others {
					batch.Inputs = append(batch.Inputs,
						store.SourceInput{Path: "others:" + o.path(),
							Text: o.text})
				}
				sink(batch)
				for _, s := range services {
					s.register(t, server)
				}
				registry, err := consul.New(consul.Options{Name: registryName,
					Address: server.Address, Namespace: "shop", Domain: consulDomain, Sink: sink,
					Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				runUntilEnd(t, registry.Run)
			}})
		})
	}
	if total < 100 || weighted == 0 {
		t.Errorf("%d ServiceEntries are services of Consul, %d with weights", total, weighted)
	}
}

// consulServicesOf returns the ServiceEntries that can be expressed as services of Consul, and the
// other objects.
func consulServicesOf(t *testing.T, objects []corpusObject) (services []corpusService,
	others []corpusObject) {
	t.Helper()
	hosts := map[string]int{}
	for _, o := range objects {
		s, ok := newCorpusService(t, o)
		if ok {
			hosts[s.spec.Hosts[0]]++
		}
		if ok && s.inConsul() {
			services = append(services, s)
		}
	}
	services = slices.DeleteFunc(services, func(s corpusService) bool {
		// ServiceEntries with the same host are merged, which a service of Consul cannot express
		return hosts[s.spec.Hosts[0]] > 1
	})
	for _, o := range objects {
		if !slices.ContainsFunc(services, func(s corpusService) bool { return s.path() == o.path() }) {
			others = append(others, o)
		}
	}
	slices.SortFunc(services, func(a, b corpusService) int {
		return strings.Compare(a.consulName(), b.consulName())
	})
	return services, others
}

// inConsul reports whether Consul can express a service: its host is in consulDomain, it has one
// port with a protocol and at least one endpoint, and it is visible in all namespaces.
func (s corpusService) inConsul() bool {
	return s.consulName() != s.spec.Hosts[0] && len(s.spec.Ports) == 1 && len(s.spec.ExportTo) == 0 &&
		s.spec.Ports[0].Protocol != "" && len(s.spec.Endpoints) > 0
}

func (s corpusService) consulName() string {
	return strings.TrimSuffix(s.spec.Hosts[0], "."+consulDomain)
}

func (s corpusService) consulProtocol() string { return strings.ToLower(s.spec.Ports[0].Protocol) }

// metadata returns the metadata and the tags of the service instance that represents an endpoint.
func (s corpusService) metadata(e corpusEndpoint) (metadata map[string]string, tags []string) {
	metadata = map[string]string{"protocol": s.consulProtocol(),
		"service-port": strconv.Itoa(s.spec.Ports[0].Number)}
	if e.ServiceAccount != "" {
		metadata["service-account"] = e.ServiceAccount
	}
	if e.Locality != "" {
		metadata["istio-locality"] = strings.ReplaceAll(e.Locality, "/", ".")
	}
	for key, value := range e.Labels {
		tags = append(tags, key+"="+value)
	}
	return metadata, tags
}

// register registers the service in Consul until the test ends.
func (s corpusService) register(t *testing.T, server *catalog.Consul) {
	t.Helper()
	for i, e := range s.spec.Endpoints {
		one := catalog.Instance{Service: s.consulName(), ID: fmt.Sprintf("%s-%03d", s.consulName(), i),
			Address: e.Address, Port: s.ports(e)[s.spec.Ports[0].Name]}
		one.Meta, one.Tags = s.metadata(e)
		if e.Weight != 0 {
			one.Weights = &catalog.Weights{Healthy: e.Weight, Warning: 1}
		}
		server.Register(t, one)
		t.Cleanup(func() { server.Deregister(t, one) })
	}
}

// consulEntry returns the ServiceEntry that the registry makes from the registered service.
func (s corpusService) consulEntry(t *testing.T) corpusObject {
	t.Helper()
	port, name := s.spec.Ports[0], s.consulProtocol()
	hosts := []string{s.spec.Hosts[0]}
	if kind, _ := model.ParseProtocol(name, ""); kind != model.TCP {
		hosts = append(hosts, s.consulName()+".service.dc1.consul")
	}
	endpoints := slices.Clone(s.spec.Endpoints)
	for i, e := range s.spec.Endpoints {
		labels, _ := s.metadata(e)
		maps.Copy(labels, e.Labels)
		endpoints[i].Labels = labels
		endpoints[i].Ports = map[string]int{name: s.ports(e)[port.Name]}
		endpoints[i].Weight = max(e.Weight, 1)
		if endpoints[i].Locality = ""; labels["istio-locality"] == "" {
			endpoints[i].Locality = "dc1"
		}
	}
	o := s.corpusObject
	o.Name = "service-" + s.consulName()
	o.text = encode(t, map[string]any{"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
		"metadata": map[string]any{"name": o.Name, "namespace": "shop"},
		"spec": corpusEntry{Hosts: hosts, Location: "MESH_INTERNAL", Resolution: "STATIC",
			Ports: []corpusPort{{Number: port.Number, Name: name,
				Protocol: strings.ToUpper(name)}}, Endpoints: endpoints}})
	return o
}
