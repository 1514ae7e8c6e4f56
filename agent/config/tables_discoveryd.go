package config

import (
	"math"
	"slices"
	"time"
)

// discoverydTables returns the definitions of discoveryd.toml, bound to c, in the file's order.
func discoverydTables(c *Discoveryd) []table {
	all := []table{
		{keys: []key{
			setting("domain", &c.Domain, "cluster.local", Start,
				"trust domain of what it signs unless [ca] says otherwise").
				plays("--domain").must(domainName),
			setting("mesh_config_file", &c.MeshConfigFile, "", Live, "Istio's MeshConfig").file(),
		}},
		{name: "paths", keys: []key{
			setting("state_dir", &c.StateDir, "", Start,
				`"" = $STATE_DIRECTORY, else /var/lib/outrider-discoveryd: last state of the `+
					`registries`).
				path(),
		}},
		discoverydListenTable(&c.Listen), discoverydTLSTable(&c.TLS), discoverydAuthTable(&c.Auth),
		{name: "push", keys: []key{
			duration("debounce_after", &c.Push.DebounceAfter, "100ms", Live,
				"quiet time before a push").plays("PILOT_DEBOUNCE_AFTER").must(atLeast(0)),
			duration("debounce_max", &c.Push.DebounceMax, "10s", Live, "longest delay of a push").
				plays("PILOT_DEBOUNCE_MAX").must(atLeast(0)),
			setting("concurrency", &c.Push.Concurrency, 0, Start,
				"pushes at the same time; 0 = by cores").
				plays("PILOT_PUSH_THROTTLE").must(between(0, math.MaxInt32)),
		}},
	}
	for i, issuer := range c.Auth.JWTIssuers {
		all = append(all, issuerTable(itemName("auth.jwt_issuers", i), issuer))
	}
	for i, s := range c.Sources {
		all = append(all, sourceTable(itemName("source", i), s, false))
	}
	for i, s := range c.Registries {
		all = append(all, sourceTable(itemName("registry", i), s, true))
	}
	return append(all, registrationTable(&c.Registration), caTable(&c.CA),
		table{name: "log", keys: []key{
			setting("level", &c.Log.Level, "info", Live, "debug | info | warn | error").
				must(oneOf(AgentLogLevels()...)),
			setting("format", &c.Log.Format, "auto", Start,
				"auto (journal under systemd, colour on a terminal, else json) | journal | tint | "+
					"json").
				must(oneOf("auto", "journal", "tint", "json")),
		}})
}

func itemName(list string, index int) string { return list + "." + render(index+1) }

func discoverydListenTable(l *DiscoverydListen) table {
	return table{name: "listen", keys: []key{
		setting("plaintext", &l.Plaintext, "127.0.0.1:15010", Start, `xDS without TLS; "" = off`).
			plays("--grpcAddr").must(optional(listenAddress)),
		setting("tls", &l.TLS, "", Start, `"0.0.0.0:15012": xDS and CA over TLS`).
			plays("--secureGRPCAddr").must(optional(listenAddress)),
		setting("monitoring", &l.Monitoring, "127.0.0.1:15014", Start,
			"/metrics, /ready, /debug/{pushes,connections,config,registry}").
			plays("--monitoringAddr").must(optional(listenAddress)),
		duration("keepalive_max_connection_age", &l.MaxConnectionAge, "30m", Start,
			"connections are moved on gradually").
			plays("--keepaliveMaxServerConnectionAge").must(atLeast(time.Second)),
		setting("max_connects_per_second", &l.MaxConnectsPerSecond, 0, Start, "0 = by cores").
			plays("PILOT_MAX_REQUESTS_PER_SECOND").must(between(0, math.MaxInt32)),
		setting("max_buffered_bytes_per_client", &l.MaxBufferedBytes, 64<<20, Start,
			"a slower client is disconnected, and told why").must(between(1<<20, math.MaxInt32)),
	}}
}

func discoverydTLSTable(t *DiscoverydTLS) table {
	return table{name: "tls", keys: []key{
		setting("cert_file", &t.CertFile, "", Live, "").file(),
		setting("key_file", &t.KeyFile, "", Live, "").file(),
		setting("client_ca_file", &t.ClientCAFile, "", Live,
			"clients may show a certificate of these roots").file(),
	}}
}

func discoverydAuthTable(a *DiscoverydAuth) table {
	return table{name: "auth", keys: []key{
		setting("require", &a.Require, "any", Live, "on [listen] tls only: any (certificate or "+
			"token) | mtls | token | none: a client without may read its own configuration, no "+
			"secrets, no debug").
			must(oneOf("any", "mtls", "token", "none")),
		setting("join_key_file", &a.JoinKeyFile, "", Live,
			"public keys (PEM) that verify tokens of `outrider-discoveryd token`").file(),
		setting("join_not_before", &a.JoinNotBefore, "", Live,
			"RFC 3339: tokens issued earlier are refused").must(optional(timestamp)),
		setting("debug_identities", &a.DebugIdentities, nil, Live, "SPIFFE IDs that may ask "+
			"debug types; [] = none but loopback on [listen] monitoring").must(each(spiffeID)),
		setting("kubernetes_token_review", &a.TokenReview, false, Live, "verify tokens of "+
			"other issuers at the API server of the first kubernetes source"),
	}}
}

// issuerTable returns the definition of one entry of [auth] jwt_issuers.
func issuerTable(name string, i *JWTIssuer) table {
	return table{name: name, list: true, keys: []key{
		setting("issuer", &i.Issuer, "", Live, ""),
		setting("audience", &i.Audience, "", Live, ""),
		setting("jwks_file", &i.JWKSFile, "", Live, "").file(),
	}}
}

// sourceTypes returns the valid types of a [[source]] or [[registry]].
func sourceTypes(registry bool) []string {
	if registry {
		return []string{"kubernetes", "consul", "mcp", "memory"}
	}
	return []string{"files", "kubernetes", "mcp", "memory"}
}

// sourceTable returns the definition of a [[source]] or [[registry]].
func sourceTable(name string, s *Source, registry bool) table {
	typed := setting("type", &s.Type, "files", Start, "files | kubernetes | mcp | memory")
	if registry {
		typed = setting("type", &s.Type, "", Start, "kubernetes | consul | mcp | memory")
	}
	keys := []key{typed.must(oneOf(sourceTypes(registry)...))}
	if !registry {
		keys = append(keys, setting("paths", &s.Paths, []string{"/etc/outrider/mesh.d"}, Start,
			"files").path().must(each(notEmpty)))
	}
	for _, k := range []key{
		setting("kubeconfig", &s.Kubeconfig, "", Start, `kubernetes; "" = in-cluster`).file(),
		setting("namespaces", &s.Namespaces, nil, Start, "kubernetes; [] = all").
			must(each(dnsLabel)),
	} {
		keys = append(keys, commentedOut(k))
	}
	if registry {
		keys = append(keys,
			commentedOut(setting("address", &s.Address, "http://127.0.0.1:8500", Start,
				"consul: its URL; mcp: host:port")),
			commentedOut(setting("datacenters", &s.Datacenters, nil, Start,
				"consul; [] = that of the agent").must(each(notEmpty))),
			commentedOut(setting("namespace", &s.Namespace, "consul", Start,
				"consul: of the services it brings").must(dnsLabel)),
			commentedOut(setting("domain", &s.Domain, "service.consul", Start,
				"consul: NAME.<domain>, NAME.service.<dc>.consul").must(domainName)))
	} else {
		keys = append(keys,
			commentedOut(setting("write_status", &s.WriteStatus, false, Start, "kubernetes")),
			commentedOut(setting("address", &s.Address, "", Start,
				"mcp: xDS server that serves configuration (istiod, another discoveryd)").
				must(optional(dialAddress))))
	}
	for _, k := range []key{
		setting("ca_file", &s.CAFile, "", Start, "mcp, consul").file(),
		setting("cert_file", &s.CertFile, "", Start,
			"mcp: certificate that is shown to the server; with key_file").file(),
		setting("key_file", &s.KeyFile, "", Start, "mcp").file(),
		setting("token_file", &s.TokenFile, "", Start,
			"mcp, consul, memory (the write API's token)").file(),
		setting("listen", &s.Listen, "", Start, "memory: address of the write API").
			must(optional(listenAddress)),
	} {
		keys = append(keys, commentedOut(k))
	}
	return table{name: name, list: true, keys: keys}
}

func commentedOut(k key) key { k.sample = true; return k }

func registrationTable(r *Registration) table {
	return table{name: "registration", keys: []key{
		setting("enabled", &r.Enabled, false, Start,
			"agents register themselves (WorkloadGroup) and report health"),
		setting("store", &r.Store, "kubernetes", Start, "kubernetes | consul").
			must(oneOf("kubernetes", "consul")),
		duration("grace_period", &r.GracePeriod, "10s", Start,
			"how long a workload without connection stays registered").
			plays("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD").must(atLeast(2 * time.Second)),
	}}
}

func caTable(c *CA) table {
	return table{name: "ca", keys: []key{
		setting("enabled", &c.Enabled, false, Start, "IstioCertificateService on [listen] tls; "+
			"signs only the caller's own SPIFFE identity"),
		setting("cert_file", &c.CertFile, "", Live, "root, or intermediate and those above it; "+
			"hot-rotated").file(),
		setting("key_file", &c.KeyFile, "", Live, "").file(),
		setting("root_file", &c.RootFile, "", Live, `roots, both in a change; "" = that in cert_file`).
			file(),
		duration("max_ttl", &c.MaxTTL, "24h", Live, "longest validity").must(atLeast(time.Minute)),
	}}
}

// lists returns the arrays of tables.
func (c *Discoveryd) lists() map[string]*list {
	return map[string]*list{
		"auth.jwt_issuers": {
			reset: func() { c.Auth.JWTIssuers = nil },
			add: func(name string) table {
				i := &JWTIssuer{}
				c.Auth.JWTIssuers = append(c.Auth.JWTIssuers, i)
				return issuerTable(name, i)
			}},
		"source":   sourceList(&c.Sources, false),
		"registry": sourceList(&c.Registries, true),
	}
}

func sourceList(all *[]*Source, registry bool) *list {
	return &list{
		reset: func() { *all = nil },
		add: func(name string) table {
			s := &Source{}
			*all = append(*all, s)
			return sourceTable(name, s, registry)
		}}
}

// newSource returns a source or registry with the defaults of its keys.
func newSource(registry bool) *Source {
	s := &Source{}
	for _, k := range sourceTable("", s, registry).keys {
		k.reset()
	}
	return s
}

// ofType reports whether a key of a [[source]] or [[registry]] applies to a type.
func ofType(key, sourceType string) bool {
	types := map[string][]string{"type": {sourceType}, "paths": {"files"},
		"kubeconfig": {"kubernetes"}, "namespaces": {"kubernetes"},
		"write_status": {"kubernetes"}, "address": {"mcp", "consul"},
		"datacenters": {"consul"}, "namespace": {"consul"}, "domain": {"consul"},
		"ca_file": {"mcp", "consul"}, "cert_file": {"mcp"}, "key_file": {"mcp"},
		"token_file": {"mcp", "consul", "memory"}, "listen": {"memory"}}
	return slices.Contains(types[key], sourceType)
}
