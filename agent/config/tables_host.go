package config

import "math"

func dnsTable(d *DNS) table {
	return table{name: "dns", keys: []key{
		setting("listen", &d.Listen, "", Start, `"127.0.0.1:15053" turns the DNS proxy on`).
			plays("ISTIO_META_DNS_CAPTURE").must(optional(listenAddress)),
		setting("upstream", &d.Upstream, nil, Live, "[] = /etc/resolv.conf").
			must(each(resolverAddress)),
		setting("parallel", &d.Parallel, false, Live, "query all of them at once; false = the next one "+
			"after an error or a second").plays("DNS_FORWARD_PARALLEL"),
		setting("resolved", &d.SystemdResolved, false, Start,
			"route the mesh's domains to it through systemd-resolved"),
	}}
}

func captureTable(c *Capture) table {
	return table{name: "capture", marked: true,
		doc: "[start] transparent interception, done by outrider-capture.service",
		keys: []key{
			setting("mode", &c.Mode, "none", Start, "none | redirect | tproxy").
				plays("ISTIO_INBOUND_INTERCEPTION_MODE").must(
				oneOf("none", "redirect", "tproxy")),
			setting("inbound_ports", &c.InboundPorts, Ports{Auto: true}, Start,
				`["auto"] = all for a sidecar with an identity, else none; [] = none, ["*"] = all`).
				plays("ISTIO_INBOUND_PORTS").must(ports),
			setting("exclude_inbound_ports", &c.ExcludeInboundPorts, []int{22}, Start, "").
				plays("ISTIO_LOCAL_EXCLUDE_PORTS").must(ports),
			setting("outbound_cidrs", &c.OutboundCIDRs, []string{"*"}, Start, "").
				plays("ISTIO_SERVICE_CIDR").must(each(cidr)),
			setting("exclude_outbound_cidrs", &c.ExcludeOutboundCIDRs, nil, Start, "").
				plays("ISTIO_SERVICE_EXCLUDE_CIDR").must(each(cidr)),
			setting("exclude_outbound_ports", &c.ExcludeOutboundPorts, nil, Start, "").
				must(ports),
			setting("dns", &c.DNS, false, Start, "also redirect port 53 to the DNS proxy"),
			setting("units", &c.Units, nil, Start,
				"only what these systemd units send is captured; [] = every process").
				must(each(captureUnit)),
			setting("exclude_units", &c.ExcludeUnits, nil, Start,
				"what these units send is never captured").must(each(captureUnit)),
			setting("fail", &c.Fail, "open", Start, "outbound, while no Envoy serves (a slow one "+
				"serves): open = rules are withdrawn, traffic goes direct | closed = new "+
				"connections are reset").
				must(oneOf("open", "closed")),
			setting("fail_inbound", &c.FailInbound, "auto", Start, "the same inbound: auto = closed "+
				"with an identity, else open | open | closed. Ends with `systemctl stop` and "+
				"`outrider cleanup`").
				must(oneOf("auto", "open", "closed")),
			setting("max_connections", &c.MaxConnections, 20000, Epoch,
				"of each captured listener of Envoy; more are closed; 0 = no limit").
				must(between(0, math.MaxInt32)),
			duration("trial", &c.TrialDuration, "0s", Start,
				"after a boot, a stop and a change of "+
					"[capture], the rules end after this time, unless `outrider capture confirm` was "+
					"called; \"0s\" = no trial").
				must(atLeast(0)),
		}}
}

func stsTable(s *STS) table {
	return table{name: "sts", doc: "token exchange (RFC 8693) for sts_service of Envoy's " +
		"google_grpc: POST /token on 127.0.0.1; only root, the agent's user and Envoy's may connect. A " +
		"request without a subject token exchanges [identity] token_file", keys: []key{
		setting("port", &s.Port, 0, Start, "0 = off").
			plays("--stsPort").must(portOrOff),
		setting("token_manager", &s.TokenManager, "GoogleTokenExchange", Start, "").
			plays("--tokenManagerPlugin").must(oneOf("GoogleTokenExchange")),
		setting("audience", &s.Audience, "", Start,
			"the workload identity provider in Google's cloud, for requests that name no audience"),
		setting("service_account", &s.ServiceAccount, "", Start,
			`e-mail address of the Google service account whose access tokens are returned; `+
				`"" = federated tokens`).
			must(optional(emailAddress)),
	}}
}

func busTable(b *Bus) table {
	return table{name: "bus", keys: []key{
		setting("enabled", &b.Enabled, true, Start,
			"org.outrider.Agent1 on the system bus; false, or no bus: the agent runs without"),
	}}
}

func logTable(l *Log) table {
	return table{name: "log", keys: []key{
		setting("level", &l.Level, "info", Live, "debug | info | warn | error").
			must(oneOf(AgentLogLevels()...)),
		setting("format", &l.Format, "auto", Start,
			"auto (journal under systemd, colour on a terminal, else json) | journal | tint | json").
			must(oneOf("auto", "journal", "tint", "json")),
		setting("envoy", &l.IncludeEnvoy, true, Live,
			"Envoy's log lines too, with their level, component and epoch"),
	}}
}
