package capture

import "net/netip"

// testResolvers are the nameservers of /etc/resolv.conf. Excluded networks do not exempt DNS
// queries to them.
var testResolvers = []netip.Addr{netip.MustParseAddr(far[0]), netip.MustParseAddr(far[1]),
	netip.MustParseAddr(excludedNetwork[0]), netip.MustParseAddr(loopbackStub[0])}

var decisionsOfDNS = []decision{
	{name: "query", udp: true, user: appUser, to: far, port: 53, want: DNS, key: keyDNS},
	{name: "query over TCP", user: appUser, to: far, port: 53, want: DNS, key: keyDNS},
	{name: "query of root", udp: true, to: far, port: 53, want: DNS, key: keyDNS},
	{name: "query to an excluded network", udp: true, user: appUser,
		to: both{excludedNetwork[0]}, port: 53, want: DNS, key: keyDNS},
	{name: "query to a stub resolver", udp: true, user: appUser, to: loopbackStub, port: 53,
		want: DNS, key: keyDNS},
	{name: "query to a stub resolver over TCP", user: appUser, to: loopbackStub, port: 53,
		want: DNS, key: keyDNS},
	{name: "query of the agent", udp: true, user: agentUser, to: far, port: 53, want: Direct,
		key: ruleAgent},
	{name: "query of the agent over TCP", user: agentUser, to: far, port: 53, want: Direct,
		key: ruleAgent},
	{name: "query of Envoy", udp: true, user: envoyUser, to: far, port: 53, want: Direct,
		key: ruleEnvoy},
	{name: "query of Envoy over TCP", user: envoyUser, to: far, port: 53, want: Direct,
		key: ruleEnvoy},
	{name: "query to another server", udp: true, user: appUser, to: otherServer, port: 53,
		want: Direct, key: "no rule matches"},
	{name: "TCP to another server", user: appUser, to: otherServer, port: 53, want: Outbound,
		key: "capture.outbound_cidrs"},
	{name: "other port of a resolver", udp: true, user: appUser, to: far, port: 80, want: Direct,
		key: "no rule matches"},
	{name: "query to this host, which is no resolver", udp: true, user: appUser, to: here, port: 53,
		want: Direct, key: ruleLoopback},
}

// decisionsOfDNSAlone are the decisions if only DNS is redirected.
var decisionsOfDNSAlone = []decision{
	{name: "query", udp: true, user: appUser, to: far, port: 53, want: DNS, key: keyDNS},
	{name: "query over TCP", user: appUser, to: far, port: 53, want: DNS, key: keyDNS},
	{name: "query of the agent", udp: true, user: agentUser, to: far, port: 53, want: Direct,
		key: ruleAgent},
	{name: "TCP to another server", user: appUser, to: otherServer, port: 53, want: refused, key: keyFail},
	{name: "query to another server", udp: true, user: appUser, to: otherServer, port: 53,
		want: Direct, key: "no rule matches"},
}
