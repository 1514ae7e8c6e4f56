package patch

import (
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// cluster patches a cluster. It returns false if a patch removes the cluster.
func (a *application) cluster(c *clusterv3.Cluster) bool {
	meets := func(p *patch) bool { return meetsCluster(p, c.Name) }
	return a.apply(a.of(networking.EnvoyFilter_CLUSTER), meets, func(p *patch) {
		if replace, ok := p.merges(); ok {
			value := proto.Clone(p.value).(*clusterv3.Cluster)
			a.clusterSocket(p, c, value)
			merge(c.ProtoReflect(), value.ProtoReflect(), replace)
			a.use(p)
		}
	})
}

// clusterSocket merges the transport socket of a patch's value into that of the cluster, and
// removes it from the value.
func (a *application) clusterSocket(p *patch, c, value *clusterv3.Cluster) {
	socket := value.TransportSocket
	value.TransportSocket = nil
	if len(c.TransportSocketMatches) == 0 {
		c.TransportSocket = a.transportSocket(p, c.TransportSocket, socket)
		return
	}
	if socket == nil {
		return
	}
	// Envoy refuses a cluster with both transport_socket and transport_socket_matches. If the
	// cluster has the latter, the patch applies to the match whose socket has the same name.
	at := slices.IndexFunc(c.TransportSocketMatches,
		func(m *clusterv3.Cluster_TransportSocketMatch) bool {
			return m.GetTransportSocket().GetName() == socket.Name
		})
	if at < 0 {
		a.warn(p, "cluster "+c.Name+" has no transport socket called "+socket.Name+
			" among those that it chooses from", "write the name of one of these")
		return
	}
	c.TransportSocketMatches[at].TransportSocket = a.transportSocket(p,
		c.TransportSocketMatches[at].TransportSocket, socket)
}

func meetsCluster(p *patch, name string) bool {
	match := p.match.GetCluster()
	if match == nil {
		return true
	}
	if match.Name != "" {
		return match.Name == name
	}
	port, subset, host := clusterName(name)
	return (match.Subset == "" || match.Subset == subset) &&
		(match.Service == "" || strings.EqualFold(match.Service, host)) &&
		(match.PortNumber == 0 || match.PortNumber == port)
}

// clusterName parses a cluster's name of the form outbound|80|subset|host. It returns zero values
// for other names.
func clusterName(name string) (port uint32, subset, host string) {
	parts := strings.Split(name, "|")
	if len(parts) != 4 {
		return 0, "", ""
	}
	number, _ := strconv.ParseUint(parts[1], 10, 16)
	return uint32(number), parts[2], parts[3]
}
