package translate

import (
	"fmt"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// ClusterName is Istio's: outbound|80|v1|reviews.example.com.
func ClusterName(port uint32, subset, host string) string {
	return fmt.Sprintf("outbound|%d|%s|%s", port, subset, host)
}

// Clusters are the resources of one service: clusters and, where it has static endpoints, these apart.
type Clusters struct {
	Resources []*resource.Resource
	Problems  []object.Problem

	mesh *mesh.Config
}

// ServiceClusters translates a service under a rule (nil: none).
func ServiceClusters(m *mesh.Config, service *model.Service, rule *model.Rule) Clusters {
	out := Clusters{mesh: m}
	for i := range service.Ports {
		port := &service.Ports[i]
		if port.Entry.Resolution == networking.ServiceEntry_NONE {
			continue // told when it is read: where it was meant to go is not known without interception
		}
		out.add(service, port, rule, nil)
		if rule != nil {
			for j := range rule.Subsets {
				out.add(service, port, rule, &rule.Subsets[j])
			}
		}
	}
	for _, shadow := range service.Shadowed {
		out.Problems = append(out.Problems, warning(shadow.Object, fmt.Sprintf("ports[%d]", shadow.Index),
			fmt.Sprintf("host %s has this port from %s:%d too, which is older and counts", service.Host, shadow.By.File, shadow.By.Line),
			"give the port in one ServiceEntry only"))
	}
	if rule != nil {
		for _, shadow := range rule.Shadowed {
			by := rule.Subset(shadow.Name).Object
			out.Problems = append(out.Problems, warning(shadow.Object, fmt.Sprintf("subsets[%d].name", shadow.Index),
				fmt.Sprintf("subset %s of %s is given at %s:%d too, which is older and counts", shadow.Name, rule.Host, by.File, by.Line), "rename or remove one"))
		}
	}
	return out
}

func (out *Clusters) add(service *model.Service, port *model.Port, rule *model.Rule, subset *model.Subset) {
	subsetName := ""
	var labels map[string]string
	origins := []resource.Origin{port.Object.Origin()}
	if rule != nil {
		for _, o := range rule.Objects {
			origins = append(origins, o.Origin())
		}
	}
	if subset != nil {
		subsetName, labels = subset.Name, subset.Labels
	}
	name := ClusterName(port.Number, subsetName, service.Host)
	c := &clusterv3.Cluster{Name: name}
	policyFor(rule, port.Number, subsetName).apply(c, port.Protocol, out.mesh)
	assignment := &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: localities(service, port, labels)}
	if subset != nil && len(assignment.Endpoints) == 0 && port == &service.Ports[0] {
		out.Problems = append(out.Problems, warning(subset.Object, fmt.Sprintf("subsets[%d].labels", subset.Index),
			fmt.Sprintf("no endpoint of %s has these labels", service.Host), "give endpoints these labels or correct them"))
	}
	if port.Entry.Resolution == networking.ServiceEntry_STATIC {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource(0), ServiceName: name}
		out.publish(name, assignment, port.Object, origins)
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.cluster.dns", TypedConfig: typed(&dnsv3.DnsCluster{
				DnsRefreshRate: durationpb.New(out.mesh.DNSRefresh), DnsJitter: durationpb.New(out.mesh.DNSRefresh), RespectDnsTtl: true,
				DnsLookupFamily:              commondnsv3.DnsLookupFamily_V4_PREFERRED,
				AllAddressesInSingleEndpoint: port.Entry.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN,
			})}}
		c.LoadAssignment = assignment
	}
	out.publish(name, c, port.Object, origins)
}

func (out *Clusters) publish(name string, message validated, from *object.Object, origins []resource.Origin) {
	r, err := resource.New(name, message, origins...)
	if err != nil {
		out.Problems = append(out.Problems, refused(from, err))
		return
	}
	out.Resources = append(out.Resources, r)
}
