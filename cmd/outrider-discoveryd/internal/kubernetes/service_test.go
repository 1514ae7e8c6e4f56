package kubernetes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// show returns a line for each ServiceEntry, followed by a line for each of its endpoints.
func show(objects []*object.Object) []string {
	var lines []string
	for _, o := range objects {
		s := o.Spec.(*networking.ServiceEntry)
		line := append([]string{o.Name}, s.Addresses...)
		var ports []string
		for _, p := range s.Ports {
			text := fmt.Sprintf("%s/%d/%s", p.Name, p.Number, p.Protocol)
			if p.TargetPort != 0 {
				text += fmt.Sprintf("→%d", p.TargetPort)
			}
			ports = append(ports, text)
		}
		line = append(line, s.Resolution.String(), strings.Join(ports, ","))
		if s.ExportTo != nil {
			line = append(line, fmt.Sprint(s.ExportTo))
		}
		if o.Annotations != nil {
			line = append(line, fmt.Sprint(o.Annotations))
		}
		if s.WorkloadSelector != nil {
			line = append(line, fmt.Sprint(s.WorkloadSelector.Labels))
		}
		lines = append(lines, strings.Join(line, " "))
		for _, e := range s.Endpoints {
			lines = append(lines, fmt.Sprintf("  %s %v %s %s %s", e.Address, e.Ports, e.Locality,
				e.ServiceAccount, e.Labels["security.istio.io/tlsMode"]))
		}
	}
	return lines
}

func createSlice(c *cluster.Cluster, ns, name, service string, s endpointSlice) {
	c.Create(slicePath+ns+"/endpointslices", fmt.Sprintf(
		"metadata: {name: %s, labels: {kubernetes.io/service-name: %s}}\naddressType: %s\n"+
			"ports: [%s]\nendpoints: [%s]", name, service, s.family, s.ports, s.endpoints))
}

func createPod(c *cluster.Cluster, ns, name, node, account, labels string) {
	c.Create(corePath+ns+"/pods", fmt.Sprintf("metadata: {name: %s, labels: {%s}}\n"+
		"spec: {nodeName: %s, serviceAccountName: %s, containers: [{name: c, image: i}]}", name,
		labels, node, account))
}

// testServices compares the ServiceEntries made from the Services of serviceCases with the expected
// ones, and their endpoints with those of istiod.
func testServices(t *testing.T, c *cluster.Cluster) {
	ns := namespace(c, "services")
	for _, node := range nodes {
		c.Create("/api/v1/nodes", node)
	}
	for _, p := range pods {
		createPod(c, ns, p.name, p.node, p.account, p.labels)
	}
	for _, s := range serviceCases {
		c.Create(corePath+ns+"/services", fmt.Sprintf(
			"metadata: {name: %s, annotations: {%s}}\nspec: %s", s.name, s.annotations, s.spec))
		for i, slice := range s.slices {
			createSlice(c, ns, fmt.Sprintf("%s-%d", s.name, i), s.name, slice)
		}
	}
	r, got := startRegistry(t, Options{Kubeconfig: c.Kubeconfig(t, c.APIServerAddress(), "secret"),
		Namespaces: []string{ns}})
	awaitSynced(t, r)
	if got.CompleteUpdateCount() != 1 || got.UpdateCount() != 1 {
		t.Errorf("%d batches, %d with all", got.UpdateCount(), got.CompleteUpdateCount())
	}
	_, kill := c.StartIstiod()
	defer kill()
	istiods := debugEndpoints(t, c)
	for _, s := range serviceCases {
		in, ok := got.Input("kubernetes:Service/services/" + s.name)
		if ok != (s.want != nil) {
			t.Errorf("%s: exists: %t", s.name, ok)
			continue
		}
		if diff := cmp.Diff(s.want, show(in.Objects)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.name, diff)
		}
		host := s.name + ".services.svc.cluster.local"
		for _, o := range in.Objects {
			if hosts := o.Spec.(*networking.ServiceEntry).Hosts; hosts[0] != host {
				t.Errorf("%s has hosts %q", s.name, hosts)
			}
		}
		if diff := cmp.Diff(istiods[host], flat(in.Objects)); diff != "" && !s.differs {
			t.Errorf("%s differs from istiod's (-istiod +own):\n%s", s.name, diff)
		}
	}
}

// flat returns a line for each endpoint of ServiceEntries, in the form of debugEndpoints.
func flat(objects []*object.Object) []string {
	var found []string
	for _, o := range objects {
		for _, e := range o.Spec.(*networking.ServiceEntry).Endpoints {
			account := ""
			if e.ServiceAccount != "" {
				account = "spiffe://cluster.local/ns/" + o.Namespace + "/sa/" + e.ServiceAccount
			}
			mode := e.Labels["security.istio.io/tlsMode"]
			if mode == "" {
				mode = "disabled"
			}
			for name, port := range e.Ports {
				found = append(found, fmt.Sprintf("%s %s:%d %s %s %s %s", name, e.Address, port,
					e.Locality, account, mode, e.Labels["version"]))
			}
		}
	}
	slices.Sort(found)
	return found
}

// debugEndpoints returns a line for each healthy endpoint in istiod, by the host of its service.
func debugEndpoints(t *testing.T, c *cluster.Cluster) map[string][]string {
	var shards map[string]map[string]struct {
		Shards map[string][]struct {
			Addresses       []string
			ServicePortName string
			EndpointPort    int
			ServiceAccount  string
			TLSMode         string
			HealthStatus    int
			Labels          map[string]string
			Locality        struct{ Label string }
		}
	}
	if err := json.Unmarshal(c.IstiodDebugPage("/debug/endpointShardz"), &shards); err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for host, namespaces := range shards {
		for _, all := range namespaces {
			for _, shard := range all.Shards {
				for _, e := range shard {
					if e.HealthStatus != 1 {
						continue
					}
					found[host] = append(found[host], fmt.Sprintf("%s %s:%d %s %s %s %s",
						e.ServicePortName, strings.Join(e.Addresses, ","), e.EndpointPort,
						strings.TrimRight(e.Locality.Label, "/"), e.ServiceAccount, e.TLSMode,
						e.Labels["version"]))
				}
			}
		}
	}
	for _, list := range found {
		slices.Sort(list)
	}
	return found
}

// testServiceChanges: each change of a Pod, Node or EndpointSlice delivers only the Service that it
// affects.
func testServiceChanges(t *testing.T, c *cluster.Cluster) {
	ns := "services"
	r, got := startRegistry(t, Options{Kubeconfig: c.Kubeconfig(t, c.APIServerAddress(), "secret")})
	awaitSynced(t, r)
	shown := func(name string) []string {
		in, _ := got.Input("kubernetes:Service/services/" + name)
		return show(in.Objects)
	}
	await := func(what, name string, want ...string) {
		t.Helper()
		parts.Eventually(t, limit, what, func() bool { return slices.Equal(shown(name), want) })
		if last := got.LastUpdate(); len(last.Inputs) != 1 || last.Complete {
			t.Errorf("%s: %d inputs, all %t", what, len(last.Inputs), last.Complete)
		}
	}
	const entry = "service:states 10.96.1.2 STATIC grpc-api/80/GRPC"
	const five = "  10.0.0.5 map[grpc-api:80]   "
	createPod(c, ns, "absent", "far", "late", "app: late")
	await("the pod of an endpoint appears", "states", entry, five,
		"  10.0.0.6 map[grpc-api:80] r2 late disabled")
	c.MergePatch(corePath+ns+"/pods/absent",
		`{"metadata": {"labels": {"security.istio.io/tlsMode": "istio"}}}`)
	await("the pod's labels change", "states", entry, five,
		"  10.0.0.6 map[grpc-api:80] r2 late istio")
	c.MergePatch(slicePath+ns+"/endpointslices/states-0",
		`{"endpoints": [{"addresses": ["10.0.0.5"]}]}`)
	await("an endpoint leaves", "states", entry, five)
	c.Send(http.MethodDelete, corePath+ns+"/services/states", "")
	await("the Service is gone", "states")
}
