package config

import "time"

func discoveryTable(d *Discovery) table {
	return table{name: "discovery", keys: []key{
		setting("address", &d.Addresses, nil, Epoch,
			"host:port of an upstream xDS server (istiod, outrider-discoveryd: 15010 plaintext, 15012 "+
				`TLS), or a list of them, of which one at a time is used (["a:15012", "b:15012"]); "" = `+
				"the embedded discovery server").
			plays("--discoveryAddress").must(eachAddress),
		setting("files", &d.Files, []string{"/etc/outrider/mesh.d"}, Start,
			"embedded server: files or directories of Istio YAML, read as kubectl and istioctl read it "+
				"(YAML 1.1); an object without a namespace is in [node] namespace; the older of two is the "+
				"earlier creationTimestamp, else the earlier path, else the earlier in the file").
			path().must(each(notEmpty)),
		setting("mesh_config_file", &d.MeshConfigFile, "", Live,
			"embedded server: Istio's MeshConfig").
			plays("--meshConfig").file(),
		duration("debounce_after", &d.DebounceAfter, "100ms", Live,
			"embedded server: quiet time before a push").
			plays("PILOT_DEBOUNCE_AFTER").must(atLeast(0)),
		duration("debounce_max", &d.DebounceMax, "10s", Live,
			"embedded server: longest delay of a push").
			plays("PILOT_DEBOUNCE_MAX").must(atLeast(0)),
		setting("auth", &d.Auth, "auto", Epoch,
			"auto (by port: 15010 none, else TLS) | none | tls | mtls").
			plays("--controlPlaneAuthPolicy").
			must(oneOf("auto", "none", "tls", "mtls")),
		setting("root_ca_file", &d.RootCAFile, "", Epoch, "").
			plays("XDS_ROOT_CA").file(),
		setting("server_name", &d.ServerName, "", Epoch,
			`"" = the host of address (SNI and SAN check)`).
			plays("ISTIOD_SAN"),
		duration("connect_timeout", &d.ConnectTimeout, "10s", Live, "the agent's dial to address").
			must(atLeast(time.Millisecond)),
		setting("cache", &d.Cache, true, Start,
			"keep the last accepted resources on disk and serve them while upstream is away"),
		duration("cache_max_age", &d.CacheMaxAge, "0s", Live,
			`older resources of the cache are not served after a start; "0s" = no limit`).
			must(atLeast(0)),
		setting("delta", &d.Delta, true, Epoch,
			"use incremental xDS with Envoy and, where it can, upstream").
			plays("ISTIO_DELTA_XDS"),
		setting("dynamic_bootstrap", &d.DynamicBootstrap, false, Epoch,
			"ask upstream for the bootstrap").
			plays("EnableDynamicBootstrap"),
		setting("pilot_identity", &d.PilotIdentity, "", Epoch, "SAN suffix of the control plane").
			plays("--pilotIdentity"),
		setting("mixer_identity", &d.MixerIdentity, "", Epoch, "only handed to a template_file").
			plays("--mixerIdentity"),
		setting("debug_address", &d.DebugAddress, "127.0.0.1:15004", Start,
			`tap: /debug/<type> forwarded upstream; "" = off`).
			plays("PROXY_XDS_DEBUG_VIA_AGENT").must(optional(listenAddress)),
		setting("proxy", &d.ProxyXDS, true, Epoch, "false: Envoy connects to address itself").
			plays("PROXY_XDS_VIA_AGENT"),
	}}
}

func sdsTable(c *Config) table {
	return table{name: "sds", keys: []key{
		setting("socket", &c.SDS.Socket, "", Epoch,
			`"" = <runtime_dir>/envoy/sds.sock; the socket Envoy asks for secrets`).
			plays("SDS_UDS_PATH").path().or(envoyFolder(c, "sds.sock")),
	}}
}

func xdsTable(c *Config) table {
	return table{name: "xds", keys: []key{
		setting("socket", &c.XDS.Socket, "", Epoch,
			`"" = <runtime_dir>/envoy/xds.sock; the socket Envoy asks for everything else`).
			path().or(envoyFolder(c, "xds.sock")),
		setting("grpc_bootstrap_file", &c.XDS.GRPCBootstrapFile, "", Start,
			"write a bootstrap for proxyless gRPC here").
			plays("GRPC_XDS_BOOTSTRAP").path(),
	}}
}
