package endpoints

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"net/netip"
)

// ParseClusters reads Envoy's /clusters?format=json (envoy.admin.v3.Clusters).
func ParseClusters(body []byte, epoch int) (Snapshot, error) {
	var answer struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Hostname string `json:"hostname"`
				Address  struct {
					Socket struct {
						Address string `json:"address"`
						Port    uint16 `json:"port_value"`
					} `json:"socket_address"`
					Pipe struct {
						Path string `json:"path"`
					} `json:"pipe"`
				} `json:"address"`
				Stats []struct {
					Name  string `json:"name"`
					Value string `json:"value"`
				} `json:"stats"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return Snapshot{}, fmt.Errorf("read Envoy's clusters: %w", err)
	}
	found := Snapshot{Epoch: epoch, Endpoints: map[Key]Counters{},
		ClustersWithClientChosenEndpoints: map[string]bool{}}
	for _, cluster := range answer.Clusters {
		for _, host := range cluster.Hosts {
			if originalDestination(cluster.Name, host.Hostname) {
				found.ClustersWithClientChosenEndpoints[cluster.Name] = true
				break
			}
			address := host.Address.Pipe.Path
			if ip, err := netip.ParseAddr(host.Address.Socket.Address); err == nil {
				address = netip.AddrPortFrom(ip, host.Address.Socket.Port).String()
			}
			var c Counters
			fields := map[string]*uint64{"rq_total": &c.Requests, "rq_success": &c.Success, "rq_error": &c.Errors,
				"rq_timeout": &c.Timeouts, "cx_total": &c.Connects,
				"cx_connect_fail": &c.ConnectFails, "cx_active": &c.ActiveConnections}
			for _, stat := range host.Stats {
				if field := fields[stat.Name]; field != nil {
					*field, _ = strconv.ParseUint(stat.Value, 10, 64) // an absent counter is 0
				}
			}
			found.Endpoints[Key{cluster.Name, address}] = c
		}
	}
	return found, nil
}

// originalDestination reports whether a client chose the endpoint's address (cluster type
// ORIGINAL_DST, for a ServiceEntry with resolution NONE). Envoy composes the host name of such an
// endpoint from the cluster's name and the address. In inbound clusters clients can only choose
// addresses of this host, so these are excluded.
func originalDestination(cluster, hostname string) bool {
	return strings.HasPrefix(cluster, "outbound") && strings.HasPrefix(hostname, cluster)
}
