package translate

import (
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	commondnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/common/dns/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dns/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// ClusterName returns Istio's name of a cluster: outbound|80|v1|reviews.example.com.
func ClusterName(port uint32, subset, host string) string {
	return fmt.Sprintf("outbound|%d|%s|%s", port, subset, host)
}

// Clusters holds the resources of one service: its clusters, and the endpoints of clusters whose
// endpoints are static.
type Clusters struct {
	Resources []*resource.Resource
	Problems  []object.Problem
	// secrets that the clusters refer to, with the DestinationRules that require them
	Secrets map[ConfiguredSecret][]resource.Origin

	mesh *mesh.Config
	node model.Node
}

// ServiceClusters translates a service with its DestinationRule (nil: none) for a proxy. Proxies
// with equal ClusterVariantKeys get equal clusters.
func ServiceClusters(m *mesh.Config, service *model.Service, rule *model.MergedDestinationRule,
	node model.Node) Clusters {
	out := Clusters{mesh: m, node: node}
	for i := range service.Ports {
		port := &service.Ports[i]
		if port.Entry.Resolution == networking.ServiceEntry_NONE && !node.IsIntercepted() {
			// validation has reported the port: without interception the original destination is
			// unknown
			continue
		}
		out.add(service, port, rule, nil)
		if rule != nil {
			for j := range rule.Subsets {
				out.add(service, port, rule, &rule.Subsets[j])
			}
		}
	}
	out.reportShadowed(service, rule)
	out.reportUnused(service, rule)
	return out
}

// reportShadowed reports subsets, policies and ports that have no effect because an older object
// has precedence.
func (out *Clusters) reportShadowed(service *model.Service, rule *model.MergedDestinationRule) {
	for _, s := range service.Shadowed {
		oldest := service.OldestServiceEntry()
		message := fmt.Sprintf(
			"host %s has this port from %s too, which is older and takes precedence",
			service.Host, oldest.Position())
		if s.Reason != "" {
			message = fmt.Sprintf(
				"host %s is given at %s too, which is older and has another %s: this entry "+
					"adds no ports to it",
				service.Host, oldest.Position(), s.Reason)
		} else if s.Port.Object != oldest {
			message = fmt.Sprintf(
				"host %s has this port from %s too, which is older and takes precedence",
				service.Host, s.Port.Object.Position())
		}
		out.Problems = append(out.Problems, s.Object.Warning(fmt.Sprintf("ports[%d]", s.Index),
			message, "give the port in one ServiceEntry only"))
	}
	if rule == nil {
		return
	}
	if rule.Policy.GetTunnel() != nil && !slices.ContainsFunc(service.Ports,
		func(p model.Port) bool { return !p.Protocol.IsHTTP() }) {
		out.Problems = append(out.Problems, rule.PolicyObject.Warning("trafficPolicy.tunnel",
			fmt.Sprintf("%s has only HTTP ports, and requests are not tunnelled", service.Host),
			"give the service a port of protocol TCP or TLS"))
	}
	for _, o := range rule.ShadowedPolicies {
		out.Problems = append(out.Problems, o.Warning("trafficPolicy",
			fmt.Sprintf("%s has a policy from %s too, which is %s and takes precedence",
				rule.Host, rule.PolicyObject.Position(), precedence(rule.PolicyObject, o)),
			"put what is wanted into one DestinationRule"))
	}
	for _, o := range rule.ShadowedSelectingRules {
		out.Problems = append(out.Problems, o.Warning("workloadSelector",
			fmt.Sprintf("%s chooses this proxy too, is older and takes precedence for %s",
				rule.Objects[0].Position(), rule.Host),
			"let only one choose a workload"))
	}
	for _, shadow := range rule.ShadowedSubsets {
		by := rule.Subset(shadow.Name).Object
		out.Problems = append(out.Problems, shadow.Object.Warning(fmt.Sprintf("subsets[%d].name",
			shadow.Index),
			fmt.Sprintf("subset %s of %s is given at %s too, which is %s and takes precedence",
				shadow.Name, rule.Host, by.Position(), precedence(by, shadow.Object)),
			"rename or remove one"))
	}
}

// precedence describes why the first object takes precedence over the second.
func precedence(first, second *object.Object) string {
	if object.CompareAge(first, second) < 0 {
		return "older"
	}
	return "for this workload"
}

func (out *Clusters) add(service *model.Service, port *model.Port,
	rule *model.MergedDestinationRule,
	subset *model.Subset) {
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
	c := &draft{Cluster: &clusterv3.Cluster{Name: ClusterName(port.Number, subsetName,
		service.Host)}, mesh: out.mesh, protocol: port.Protocol,
		policy: policyFor(rule, port.Number, subsetName)}
	if out.node.RecordsMetrics {
		c.Metadata = serviceLabels(service.Host, service.Host)
	}
	endpoints := service.Endpoints(port, labels)
	// the cluster forwards to the original destination
	toOriginal := port.Entry.Resolution == networking.ServiceEntry_NONE
	closed := false // the cluster fails all requests
	if subset != nil && len(endpoints) == 0 && !toOriginal && port == &service.Ports[0] {
		out.Problems = append(out.Problems, subset.Object.Warning(fmt.Sprintf("subsets[%d].labels",
			subset.Index), fmt.Sprintf("no endpoint of %s has these labels", service.Host),
			"give endpoints these labels or correct them"))
	}
	if c.policy.loadBalancer.GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
		toOriginal, endpoints = out.node.IsIntercepted(), nil
		if !out.node.IsIntercepted() {
			out.Problems = append(out.Problems,
				rule.Objects[0].Warning("trafficPolicy.loadBalancer.simple",
					fmt.Sprintf("PASSTHROUGH sends connections where they were addressed to, "+
						"which needs interception: requests to %s get 503", service.Host),
					"write LEAST_REQUEST, ROUND_ROBIN or RANDOM"))
		}
	}
	if c.policy.tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL && !out.node.Identity {
		// the requests must not be sent unencrypted, so the cluster gets no endpoints and fails
		// them
		c.policy.tls, endpoints, toOriginal, closed = nil, nil, false, true
		out.Problems = append(out.Problems, noIdentity(rule, subset, port.Number, service.Host))
	}
	c.applyPool()
	c.applyOutlier()
	c.applyBalancer()
	serverName := meshServerName(port.Number, subsetName, service.Host)
	// subsets have no endpoints with dynamic DNS, because resolved hosts have no labels
	dynamic := port.IsDynamicDNS() && subset == nil
	switch {
	case dynamic && c.policy.tls.GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL:
		c.applyTLS(c.peers(service, port), "")
	case c.policy.tls != nil:
		c.applyTLS(c.peers(service, port), serverName)
	case !out.automatic(service, port):
	case toOriginal:
		c.mutualToAll(service, port, serverName)
	default:
		c.mutualByEndpoint(endpoints, tlsMode(rule, port.Number, subsetName),
			c.peers(service, port), serverName)
	}
	c.applyProxyProtocol()
	for _, secret := range c.secrets {
		out.need(secret, rule)
	}
	switch {
	case dynamic && !closed:
		c.resolveDynamically()
		out.publish(c.Name, c.finish(), port.Object, origins)
		return
	case toOriginal:
		c.passThrough(port.TargetPort())
		out.publish(c.Name, c.finish(), port.Object, origins)
		return
	}
	out.sendTo(c, service, port, endpoints, origins)
}

// sendTo publishes a cluster with its endpoints: in the cluster itself if Envoy must resolve host
// names, else as a resource of EDS.
func (out *Clusters) sendTo(c *draft, service *model.Service, port *model.Port,
	endpoints []model.Endpoint, origins []resource.Origin) {
	to := assignment(c.Name, c.prefer(service, byLocality(endpoints), out.node), c.mutual,
		out.labels(service))
	if port.ResolvesNames() && len(endpoints) > 0 {
		c.resolveNames(port.Entry.Resolution)
		c.LoadAssignment = to
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource(0),
			ServiceName: c.Name}
		out.publish(c.Name, to, port.Object, origins)
	}
	out.publish(c.Name, c.finish(), port.Object, origins)
}

// passThrough makes the cluster forward connections to their original address. A port other than 0
// replaces the original port.
func (d *draft) passThrough(port uint32) {
	d.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
	d.LbPolicy, d.LbConfig = clusterv3.Cluster_CLUSTER_PROVIDED, nil
	if port != 0 {
		d.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{
			OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
				UpstreamPortOverride: wrapperspb.UInt32(port)}}
	}
}

// resolveNames makes Envoy resolve endpoints with DNS. how selects whether it uses all addresses of
// a name or one at a time.
func (d *draft) resolveNames(how networking.ServiceEntry_Resolution) {
	d.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{
		ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name: "envoy.cluster.dns", TypedConfig: typed(&dnsv3.DnsCluster{
				DnsRefreshRate: durationpb.New(d.mesh.DNSRefreshRate),
				DnsJitter:      durationpb.New(d.mesh.DNSRefreshRate), RespectDnsTtl: true,
				DnsLookupFamily:              commondnsv3.DnsLookupFamily_V4_PREFERRED,
				AllAddressesInSingleEndpoint: how == networking.ServiceEntry_DNS_ROUND_ROBIN,
			})}}
}

// need records that a DestinationRule requires a secret.
func (out *Clusters) need(secret ConfiguredSecret, rule *model.MergedDestinationRule) {
	if _, known := out.Secrets[secret]; known {
		return
	}
	if out.Secrets == nil {
		out.Secrets = map[ConfiguredSecret][]resource.Origin{}
	}
	for _, o := range rule.Objects {
		out.Secrets[secret] = append(out.Secrets[secret], o.Origin())
	}
}

func (out *Clusters) publish(name string, message validated, from *object.Object,
	origins []resource.Origin) {
	r, err := resource.New(name, message, origins...)
	if err != nil {
		out.Problems = append(out.Problems, refused(from, err))
		return
	}
	out.Resources = append(out.Resources, r)
}

// noIdentity returns the problem that a DestinationRule requires a certificate of the mesh, which
// the proxy does not have.
func noIdentity(rule *model.MergedDestinationRule, subset *model.Subset, port uint32,
	host string) object.Problem {
	o, field, says := rule.PolicyObject, "trafficPolicy", rule.Policy
	if subset != nil && (policy{}).override(subset.TrafficPolicy, port).tls != nil {
		o, field, says = subset.Object, fmt.Sprintf("subsets[%d].trafficPolicy", subset.Index),
			subset.TrafficPolicy
	}
	for i, own := range says.PortLevelSettings {
		if own.GetPort().GetNumber() == port {
			field += fmt.Sprintf(".portLevelSettings[%d]", i)
			break
		}
	}
	return o.Warning(field+".tls.mode",
		fmt.Sprintf("ISTIO_MUTUAL needs a certificate of the mesh, and this proxy has no "+
			"identity: requests to %s get 503", host),
		"write SIMPLE or MUTUAL with files, or DISABLE")
}
