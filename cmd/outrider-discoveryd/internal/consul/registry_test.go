package consul

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/catalog"
)

// TestRegistry_ServesCatalogue makes each relevant kind of change in the catalogue of a real
// Consul, and checks the resulting ServiceEntries.
func TestRegistry_ServesCatalogue(t *testing.T) {
	t.Parallel()
	consul := catalog.Start(t, catalog.Options{})
	web1 := catalog.Instance{Service: "web", ID: "web-1", Node: "n1", Address: "10.0.0.1",
		Port: 8080, Tags: []string{"version=v1", "canary", "traefik.rule=Host(`a`)"},
		Status: "passing", Meta: map[string]string{"protocol": "http", "service-account": "web"},
		Weights: &catalog.Weights{Healthy: 5, Warning: 2}}
	web2 := catalog.Instance{Service: "web", ID: "web-2", Node: "n2", Address: "10.0.0.2",
		Port: 8081, Status: "passing", Meta: map[string]string{"istio-locality": "eu.a"}}
	web3 := catalog.Instance{Service: "web", ID: "web-3", Node: "n2", Address: "10.0.0.3",
		Port: 8080, Status: "critical"}
	mail := catalog.Instance{Service: "mail", Node: "n1", Address: "10.0.0.4", Port: 25}
	consul.Register(t, web1)
	consul.Register(t, web2)
	consul.Register(t, web3)
	consul.Register(t, mail)
	consul.Register(t, catalog.Instance{Service: "no-port", Address: "10.0.0.9"})
	outside := catalog.Instance{Service: "outside", Node: "o", Address: "example.org", Port: 443,
		Tags: []string{"protocol=https"}, Status: "passing"}
	consul.Register(t, outside)

	consul.Register(t, catalog.Instance{Service: "under_score", Address: "10.0.0.9", Port: 80})

	s := start(t, Options{Address: consul.Address})
	s.awaitSynced()
	if got, want := s.paths(), "consul:mail consul:outside consul:web"; got != want {
		t.Errorf("services %s, not %s", got, want)
	}
	want := &networking.ServiceEntry{
		Hosts:      []string{"web.service.consul", "web.service.dc1.consul"},
		Location:   networking.ServiceEntry_MESH_INTERNAL,
		Resolution: networking.ServiceEntry_STATIC,
		Ports:      []*networking.ServicePort{{Number: 8080, Protocol: "HTTP", Name: "http"}},
		Endpoints: []*networking.WorkloadEntry{
			{Address: "10.0.0.1", Ports: map[string]uint32{"http": 8080}, Weight: 5, Locality: "dc1",
				ServiceAccount: "web", Labels: map[string]string{"version": "v1", "canary": "true",
					"protocol": "http", "service-account": "web"}},
			{Address: "10.0.0.2", Ports: map[string]uint32{"http": 8081}, Weight: 1,
				Labels: map[string]string{"istio-locality": "eu.a"}},
		},
	}
	if diff := cmp.Diff(want, s.entry("consul:web"), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if got := s.entry("consul:outside"); got.Resolution != networking.ServiceEntry_DNS ||
		got.Ports[0].Protocol != "HTTPS" {
		t.Errorf("a service with a host name: %v", got)
	}

	s.await("problem", "1 services have no host, as their names have other characters than letters, "+
		`digits, - and dots: "under_score" first`, s.problem)

	consul.SetStatus(t, web3, "passing")
	s.awaitAddresses("consul:web", "10.0.0.1*5 10.0.0.2 10.0.0.3")
	consul.SetStatus(t, web1, "warning")
	s.awaitAddresses("consul:web", "10.0.0.1*2 10.0.0.2 10.0.0.3")
	consul.SetStatus(t, web2, "critical")
	s.awaitAddresses("consul:web", "10.0.0.1*2 10.0.0.3")
	consul.SetNodeStatus(t, "n1", "critical")
	s.awaitAddresses("consul:web", "10.0.0.3")
	s.awaitAddresses("consul:mail", "")
	consul.SetNodeStatus(t, "n1", "passing")
	s.awaitAddresses("consul:mail", "10.0.0.4")
	s.awaitAddresses("consul:web", "10.0.0.1*2 10.0.0.3")
	consul.SetMaintenance(t, web3, true)
	s.awaitAddresses("consul:web", "10.0.0.1*2")
	consul.SetMaintenance(t, web3, false)
	s.awaitAddresses("consul:web", "10.0.0.1*2 10.0.0.3")

	consul.SetStatus(t, outside, "critical")
	s.awaitAddresses("consul:outside", "")
	if got := s.entry("consul:outside").Resolution; got != networking.ServiceEntry_STATIC {
		t.Errorf("a service without healthy instances: %v, which resolves its own host", got)
	}

	// For changes that affect no health check, Consul does not report which service has changed.
	mail.Address = "10.0.0.5"
	consul.Register(t, mail)
	s.awaitAddresses("consul:mail", "10.0.0.5")
	second := catalog.Instance{Service: "mail", ID: "mail-2", Address: "10.0.0.6", Port: 25}
	consul.Register(t, second)
	s.awaitAddresses("consul:mail", "10.0.0.6 10.0.0.5")
	consul.Deregister(t, mail)
	s.awaitAddresses("consul:mail", "10.0.0.6")
	consul.Deregister(t, second)
	s.await("services", "consul:outside consul:web", s.paths)
	consul.Register(t, catalog.Instance{Service: "http-new", Address: "10.0.0.7", Port: 80})
	s.awaitAddresses("consul:http-new", "10.0.0.7")
	if got := s.entry("consul:http-new").Ports[0].Protocol; got != "HTTP" {
		t.Errorf("protocol of the name http-new: %s", got)
	}
	if n := s.CompleteUpdateCount(); n != 1 {
		t.Errorf("%d complete batches", n)
	}
}

// TestRegistry_KeepsWhatConsulLost restarts Consul with an empty catalogue. The registry retains
// the lost services until they are registered again, or until a reload.
func TestRegistry_KeepsWhatConsulLost(t *testing.T) {
	t.Parallel()
	consul := catalog.Start(t, catalog.Options{})
	web := catalog.Instance{Service: "web", Address: "10.0.0.1", Port: 80, Status: "passing"}
	api := catalog.Instance{Service: "api", Address: "10.0.0.2", Port: 80, Status: "passing"}
	mail := catalog.Instance{Service: "mail", Address: "10.0.0.3", Port: 25, Status: "passing"}
	for _, i := range []catalog.Instance{web, api, mail} {
		consul.Register(t, i)
	}
	s := start(t, Options{Address: consul.Address})
	s.awaitSynced()
	const all = "consul:api consul:mail consul:web"
	if s.paths() != all {
		t.Fatal(s.paths())
	}
	connected := s.registry.Status().LastContact

	consul.Kill()
	s.awaitError("connect")
	if since := s.registry.Status().LastContact; since.Before(connected) || s.paths() != all {
		t.Errorf("without Consul: %v since %v", s.paths(), since)
	}
	consul = consul.Restart(t)
	s.awaitError("")
	s.await("problem", "Consul has lost 3 of 3 services: their last state stays until they are "+
		"registered again; a reload removes them", s.problem)
	s.await("services", all, s.paths)

	// Services are registered again one after the other. The registry retains those that are still
	// missing.
	web.Address, api.Address = "10.0.1.1", "10.0.1.2"
	consul.Register(t, web)
	s.awaitAddresses("consul:web", "10.0.1.1")
	consul.Register(t, api)
	s.awaitAddresses("consul:api", "10.0.1.2")
	s.awaitAddresses("consul:mail", "10.0.0.3")
	consul.Deregister(t, web) // a service that is deregistered, not lost, is removed
	s.await("services", "consul:api consul:mail", s.paths)
	s.registry.RemoveRetainedInputs()
	s.await("services", "consul:api", s.paths)
	s.await("problem", "", s.problem)
}

// TestRegistry_TokenFromFile: a replaced token takes effect without a restart. While a token is
// revoked or may read less, the registry reports an error or a problem, and retains its services.
func TestRegistry_TokenFromFile(t *testing.T) {
	t.Parallel()
	consul := catalog.Start(t, catalog.Options{ACL: true})
	consul.Register(t, catalog.Instance{Service: "web", Address: "10.0.0.1", Port: 80})
	file := filepath.Join(t.TempDir(), "token")
	s := start(t, Options{Address: consul.Address, TokenFile: file})
	s.awaitError("token_file: open ")
	write(t, file, "\n")
	s.awaitError("is empty")
	none, reader := consul.CreateToken(t, ""), consul.CreateToken(t,
		`service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`)
	write(t, file, none)
	s.awaitError("the Consul token may not read any service")
	if s.registry.Status().Synced {
		t.Error("synchronised without a right to read")
	}
	write(t, file, reader+"\n")
	s.awaitSynced()
	s.awaitAddresses("consul:web", "10.0.0.1")

	consul.Do(t, http.MethodDelete, "/v1/acl/token/"+consul.AccessorID(t, reader), nil, nil)
	consul.Register(t, catalog.Instance{Service: "api", Address: "10.0.0.2", Port: 80})
	s.awaitError("consul refuses the token (403)")
	s.awaitAddresses("consul:web", "10.0.0.1")
	write(t, file, none)
	parts.Eventually(t, limit, "the token's rights are reported", func() bool {
		// Whether the status has an error or a problem depends on which query first uses the new
		// token.
		status := s.registry.Status()
		return status.Err != nil &&
			strings.Contains(status.Err.Error(), "may not read any service") ||
			status.Problem == "the token may not read the instances of service api"
	})
	s.awaitAddresses("consul:web", "10.0.0.1")
	write(t, file, catalog.ManagementToken)
	s.awaitAddresses("consul:api", "10.0.0.2")
	s.awaitError("")
}

// TestRegistry_ServesOtherDatacenters configures a datacentre that exists and one that does not.
// The services of the existing one are delivered; the other one is reported as an error.
func TestRegistry_ServesOtherDatacenters(t *testing.T) {
	t.Parallel()
	consul := catalog.Start(t, catalog.Options{})
	consul.Register(t, catalog.Instance{Service: "web", Address: "10.0.0.1", Port: 80})
	s := start(t, Options{Name: "c", Address: consul.Address, Datacenters: []string{"dc1", "dc9"},
		Domain: "Mesh", Namespace: "vms"}, func(r *Registry) { r.late = 0 })
	s.awaitAddresses("c:dc1/web", "10.0.0.1")
	s.awaitError("datacenter dc9: consul answers 500: No path to datacenter")
	if s.registry.Status().Synced {
		t.Error("synchronised without a datacentre")
	}
	if got := strings.Join(s.entry("c:dc1/web").Hosts, " "); got != "web.mesh" {
		t.Errorf("hosts %s of a TCP service", got)
	}
}

// TestRegistry_OfTwoDatacenters connects the Consul servers of two datacentres, and reads both
// datacentres through the first server. While the second server is down, the registry retains the
// services of its datacentre. After the second server has restarted without data, they remain until
// they are registered again.
func TestRegistry_OfTwoDatacenters(t *testing.T) {
	t.Parallel()
	first := catalog.Start(t, catalog.Options{})
	second := catalog.Start(t, catalog.Options{Datacenter: "dc2", Join: first})
	near := catalog.Instance{Service: "web", Address: "10.0.0.1", Port: 80, Status: "passing",
		Meta: map[string]string{"protocol": "http"}}
	far := near
	far.Address = "10.0.2.1"
	first.Register(t, near)
	second.Register(t, far)
	s := start(t, Options{Address: first.Address, Datacenters: []string{"dc1", "dc2"}})
	s.awaitSynced()
	s.awaitAddresses("consul:dc1/web", "10.0.0.1")
	s.awaitAddresses("consul:dc2/web", "10.0.2.1")
	got := s.entry("consul:dc2/web")
	hosts := strings.Join(got.Hosts, " ")
	if hosts != "web.service.consul web.service.dc2.consul" || got.Endpoints[0].Locality != "dc2" {
		t.Errorf("hosts %s, locality %s", hosts, got.Endpoints[0].Locality)
	}
	second.SetStatus(t, far, "critical")
	s.awaitAddresses("consul:dc2/web", "")
	second.SetStatus(t, far, "passing")
	s.awaitAddresses("consul:dc2/web", "10.0.2.1")

	second.Kill()
	s.awaitError("datacenter dc2: ")
	s.awaitAddresses("consul:dc2/web", "10.0.2.1")
	near.Address = "10.0.0.9" // changes in the other datacentre are still delivered
	first.Register(t, near)
	s.awaitAddresses("consul:dc1/web", "10.0.0.9")
	second = second.Restart(t)
	s.awaitError("")
	s.await("problem", "Consul has lost 1 of 1 services: their last state stays until they are "+
		"registered again; a reload removes them", s.problem)
	s.awaitAddresses("consul:dc2/web", "10.0.2.1")
	far.Address = "10.0.2.2"
	second.Register(t, far)
	s.awaitAddresses("consul:dc2/web", "10.0.2.2")
}
