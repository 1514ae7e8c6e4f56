package main

import (
	"cmp"
	"context"
	"slices"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/resource"
)

// cluster has the printed fields of envoy.config.cluster.v3.Cluster.
type cluster struct {
	Name   string `json:"name"`
	Type   string `json:"type"`
	Policy string `json:"lb_policy"`
	Custom struct {
		Name string `json:"name"`
	} `json:"cluster_type"`
}

type clustersDump struct {
	Static []struct {
		Cluster cluster `json:"cluster"`
	} `json:"static_clusters"`
	Active  []dynamicCluster `json:"dynamic_active_clusters"`
	Warming []dynamicCluster `json:"dynamic_warming_clusters"`
}

type dynamicCluster struct {
	Version string  `json:"version_info"`
	Cluster cluster `json:"cluster"`
}

func (a *app) showClusters(ctx context.Context, client *api.Client, named []string) error {
	var dumped clustersDump
	from, printed, err := a.decodeDump(ctx, client, "ClustersConfigDump", &dumped,
		resource.ClusterType)
	if printed || err != nil {
		return err
	}
	status, err := clusterStatuses(ctx, client)
	if err != nil {
		return err
	}
	endpoints := map[string]cell{}
	for _, s := range status.Clusters {
		healthy := 0
		for _, host := range s.Hosts {
			if host.healthy() {
				healthy++
			}
		}
		shown := text("%d/%d", healthy, len(s.Hosts))
		if healthy < len(s.Hosts) {
			shown.style = yellow
		}
		if healthy == 0 && len(s.Hosts) > 0 {
			shown.style = red
		}
		endpoints[s.Name] = shown
	}
	t := &table{
		head: []string{"CLUSTER", "TYPE", "BALANCER", "SOURCE", "VERSION", "STATE", "HEALTHY",
			"FROM"},
		wide: []string{"BALANCER", "SOURCE", "VERSION"},
	}
	add := func(c cluster, source, version, state string) {
		if len(named) > 0 && !slices.Contains(named, c.Name) {
			return
		}
		// Envoy omits fields with default values.
		kind := cmp.Or(c.Type, c.Custom.Name, "STATIC")
		t.add(c.Name, kind, cmp.Or(c.Policy, "ROUND_ROBIN"), source, a.short(version),
			cell{state, stateWord(state)}, endpoints[c.Name],
			from.cell(resource.ClusterType, c.Name))
	}
	for _, c := range dumped.Static {
		add(c.Cluster, "static", "", "active")
	}
	for _, c := range dumped.Active {
		add(c.Cluster, "xds", c.Version, "active")
	}
	for _, c := range dumped.Warming {
		add(c.Cluster, "xds", c.Version, "warming")
	}
	t.sortBy(0)
	a.write(t, "no cluster")
	return nil
}

// stateWord returns the style for the name of a state.
func stateWord(state string) style {
	switch state {
	case "active", "accepted", "healthy":
		return green
	case "refused", "unhealthy":
		return red
	}
	return yellow
}
