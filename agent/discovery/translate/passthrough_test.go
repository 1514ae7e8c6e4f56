package translate

import (
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/resource"
)

// TestPassThrough: connections are forwarded to their original destination only with interception,
// and never without the requested encryption.
func TestPassThrough(t *testing.T) {
	passthrough := &networking.LoadBalancerSettings{
		LbPolicy: &networking.LoadBalancerSettings_Simple{
			Simple: networking.LoadBalancerSettings_PASSTHROUGH}}
	mutual := &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL}
	for _, test := range []struct {
		name       string
		resolution networking.ServiceEntry_Resolution
		policy     *networking.TrafficPolicy
		node       model.Node
		want       clusterv3.Cluster_DiscoveryType
		port       uint32
	}{
		{"resolution NONE", networking.ServiceEntry_NONE, nil,
			model.Node{Interception: model.Redirect}, clusterv3.Cluster_ORIGINAL_DST, 8080},
		{"PASSTHROUGH", networking.ServiceEntry_STATIC, &networking.TrafficPolicy{
			LoadBalancer: passthrough}, model.Node{Interception: model.Redirect},
			clusterv3.Cluster_ORIGINAL_DST, 8080},
		{"PASSTHROUGH without interception", networking.ServiceEntry_STATIC,
			&networking.TrafficPolicy{LoadBalancer: passthrough}, model.Node{},
			clusterv3.Cluster_EDS, 0},
		{"NONE without identity", networking.ServiceEntry_NONE, &networking.TrafficPolicy{
			Tls: mutual}, model.Node{Interception: model.Redirect}, clusterv3.Cluster_EDS, 0},
		{"PASSTHROUGH without identity", networking.ServiceEntry_STATIC, &networking.TrafficPolicy{
			Tls: mutual, LoadBalancer: passthrough},
			model.Node{Interception: model.Redirect}, clusterv3.Cluster_EDS, 0},
	} {
		entry := &networking.ServiceEntry{Hosts: []string{"a.test"}, Resolution: test.resolution,
			Ports: []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP",
				TargetPort: 8080}}}
		if test.resolution == networking.ServiceEntry_STATIC {
			entry.Endpoints = []*networking.WorkloadEntry{{Address: "10.0.0.1"}}
		}
		m := mesh.Default()
		world := model.NewMesh("cluster.local", m)
		changes := []object.Change{
			{New: &object.Object{Key: object.Key{Kind: object.ServiceEntry, Name: "a"},
				Spec: entry}}}
		if test.policy != nil {
			changes = append(changes,
				object.Change{New: &object.Object{Key: object.Key{Kind: object.DestinationRule,
					Name: "a"},
					Spec: &networking.DestinationRule{Host: "a.test", TrafficPolicy: test.policy}}})
		}
		world.Apply(changes)
		service := world.Service("a.test", "")
		out := ServiceClusters(m, service, world.DestinationRule(service, test.node), test.node)
		at := slices.IndexFunc(out.Resources, func(r *resource.Resource) bool {
			return r.Type == resource.ClusterType
		})
		if at < 0 {
			t.Errorf("%s: no cluster: %v", test.name, out.Problems)
			continue
		}
		var c clusterv3.Cluster
		if err := proto.Unmarshal(out.Resources[at].EncodedMessage(), &c); err != nil {
			t.Fatal(err)
		}
		if c.GetType() != test.want ||
			c.GetOriginalDstLbConfig().GetUpstreamPortOverride().GetValue() != test.port {
			t.Errorf("%s: %v", test.name, &c)
		}
	}
}
