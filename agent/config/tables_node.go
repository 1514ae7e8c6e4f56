package config

func pathsTable(p *Paths) table {
	return table{name: "paths",
		doc: "`outriderd --instance NAME` reads /etc/outrider/NAME.toml and /etc/outrider/NAME.conf.d, " +
			"and adds /NAME to /run/outrider and /var/lib/outrider (systemd's variables carry it " +
			"already); `--config FILE` takes any file, drop-ins from conf.d beside " +
			"it, and these as they stand",
		keys: []key{
			setting("runtime_dir", &p.RuntimeDir, "", Start,
				`"" = $RUNTIME_DIRECTORY, else /run/outrider`).path(),
			setting("state_dir", &p.StateDir, "", Start,
				`"" = $STATE_DIRECTORY, else /var/lib/outrider`).path(),
		}}
}

func nodeTable(n *Node) table {
	return table{name: "node", keys: []key{
		setting("type", &n.Type, "sidecar", Epoch, "sidecar | router").
			plays("positional argument").must(oneOf("sidecar", "router")),
		setting("id", &n.ID, "", Epoch, `"" = <hostname>.<namespace>`).
			plays("--id").must(nodeWord),
		setting("ip", &n.IP, "", Epoch, `"" = first global unicast address`).
			plays("--ip, INSTANCE_IP").must(optional(ipAddress)),
		setting("extra_ips", &n.ExtraIPs, nil, Epoch, "further addresses of the node; if there are "+
			"none, ip is \"\" and there is an upstream server: one of the other IP family").
			plays("INSTANCE_IPS").must(each(ipAddress)),
		setting("namespace", &n.Namespace, "default", Epoch, "").
			plays("POD_NAMESPACE").must(dnsLabel),
		setting("service_account", &n.ServiceAccount, "default", Epoch, "").
			plays("SERVICE_ACCOUNT").must(kubernetesName),
		setting("service_cluster", &n.ServiceCluster, "istio-proxy", Epoch, "").
			plays("--serviceCluster").must(notEmpty),
		setting("domain", &n.Domain, "", Epoch, `"" = by service_registry, see below`).
			plays("--domain").must(optional(domainName)),
		setting("service_registry", &n.ServiceRegistry, "Kubernetes", Epoch,
			`Kubernetes: <namespace>.svc.cluster.local; Consul: service.consul; Mock: ""`).
			plays("--serviceregistry").must(oneOf("Kubernetes", "Consul", "Mock")),
		setting("trust_domain", &n.TrustDomain, "cluster.local", Epoch, "").
			plays("--trust-domain").must(domainName),
		setting("cluster_id", &n.ClusterID, "Kubernetes", Epoch, "").
			plays("ISTIO_META_CLUSTER_ID"),
		setting("mesh_id", &n.MeshID, "", Epoch, "").
			plays("ISTIO_META_MESH_ID"),
		setting("network", &n.Network, "", Epoch, "").
			plays("ISTIO_META_NETWORK"),
		setting("locality", &n.Locality, "", Epoch, "region/zone/subzone").
			must(optional(localityName)),
		setting("cloud_platform", &n.Cloud, "", Epoch,
			"aws | gcp | azure: locality and labels (tags of aws and azure) that are not set here come "+
				"from the machine's metadata service").
			plays("CLOUD_PLATFORM").must(optional(oneOf("aws", "gcp", "azure"))),
		setting("workload_group", &n.WorkloadGroup, "", Epoch,
			"a WorkloadGroup to register with (auto-registration)").
			plays("ISTIO_META_AUTO_REGISTER_GROUP"),
		setting("labels", &n.Labels, nil, Epoch, "").
			plays("ISTIO_METAJSON_LABELS"),
		setting("metadata", &n.Metadata, nil, Epoch, "any further node metadata").
			plays("ISTIO_META_*").conceals(concealAll),
	}}
}
