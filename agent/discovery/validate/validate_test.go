package validate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/discovery/validate"
)

// What specs are made of where a row is about something else.
const (
	goodEntry   = "hosts: [a.test]\nresolution: STATIC\nports: [{number: 80, name: http, protocol: HTTP}]\nendpoints: [{address: 10.0.0.1}]\n"
	chosenEntry = "hosts: [a.test]\nresolution: STATIC\nports: [{number: 80, name: http, protocol: HTTP}]\n"
	goodRoute   = "hosts: [a.test]\nhttp: [{route: [{destination: {host: a.test}}]}]\n"
	locality    = "host: a\ntrafficPolicy: {loadBalancer: {localityLbSetting: {"
	httpsPort   = "servers:\n- port: {number: 443, name: s, protocol: HTTPS}\n  hosts: ['*']\n  tls: "
)

// TestSpecs gives each spec to the validator. want is "" for a good one, else the field and a part of what is said of it:
// "field: words"; a ! before it stands for an error, a ? for a warning.
func TestSpecs(t *testing.T) {
	se, dr, vs, gw, ef := "ServiceEntry", "DestinationRule", "VirtualService", "Gateway", "EnvoyFilter"
	patched := func(patch string) string { return "configPatches: [{" + patch + "}]" }
	sc := "Sidecar"
	http := func(route string) string {
		return "hosts: [a.test]\nhttp:\n- " + strings.ReplaceAll(route, "\n", "\n  ")
	}
	to := "route: [{destination: {host: a.test}}]"
	for _, test := range []struct{ kind, spec, want string }{
		{se, goodEntry, ""},
		{se, strings.Replace(goodEntry, "[a.test]", "[]", 1), "!hosts: no host"},
		{se, strings.Replace(goodEntry, "[a.test]", "['*']", 1), "!hosts[0]: * alone"},
		{se, strings.Replace(goodEntry, "[a.test]", "[a.test, 'a.*.test']", 1), "!hosts[1]: only a whole first label"},
		{se, strings.Replace(goodEntry, "[a.test]", "['*.a.test', '*-b.a.test']", 1), ""},
		{se, strings.Replace(goodEntry, "[a.test]", "[a_b.test]", 1), "!hosts[0]: is no host name"},
		{se, strings.Replace(goodEntry, "number: 80", "number: 0", 1), "!ports[0].number: 0 is no port"},
		{se, strings.Replace(goodEntry, "number: 80", "number: 65536", 1), "!ports[0].number: no port"},
		{se, strings.Replace(goodEntry, "name: http", "name: ''", 1), "!ports[0].name: has no name"},
		{se, strings.Replace(goodEntry, "HTTP}", "HTPT}", 1), "!ports[0].protocol: is no protocol"},
		{se, strings.Replace(goodEntry, "}]\nend", "}, {number: 80, name: b, protocol: TCP}]\nend", 1), "!ports[1].number: given twice"},
		{se, strings.Replace(goodEntry, "}]\nend", "}, {number: 81, name: http, protocol: TCP}]\nend", 1), "!ports[1].name: called http already"},
		{se, strings.Replace(goodEntry, "10.0.0.1}", "10.0.0.1, ports: {grpc: 1}}", 1), "!endpoints[0].ports[\"grpc\"]: no port called grpc"},
		{se, strings.Replace(goodEntry, "10.0.0.1}", "10.0.0.1, network: far}", 1), ""},
		{se, strings.Replace(goodEntry, "address: 10.0.0.1}", "network: far}", 1), "?endpoints[0].address: another network"},
		{se, strings.Replace(goodEntry, "10.0.0.1}", "10.0.0.1, locality: a//b}", 1), "!endpoints[0].locality: no locality"},
		{se, strings.Replace(goodEntry, "10.0.0.1}", "'unix:///run/'}", 1), "!endpoints[0].address: no absolute path"},
		{se, strings.NewReplacer("HTTP}", "TCP}", "[a.test]", "[a.test, b.test]").Replace(goodEntry), "!ports[0].protocol: for which of several hosts"},
		{se, strings.Replace(goodEntry, "STATIC", "DNS\naddresses: [10.0.0.0/24]", 1), "!addresses[0]: NONE and STATIC only"},
		{se, chosenEntry + "workloadSelector: {labels: {a: b}}", ""},
		{se, chosenEntry + "workloadSelector: {labels: {a: '*'}}", "!workloadSelector.labels[\"a\"]: stands for itself"},
		{se, chosenEntry + "workloadSelector: {}", "?workloadSelector: every WorkloadEntry"},
		{se, goodEntry + "subjectAltNames: ['']", "!subjectAltNames[0]: is empty"},

		{"WorkloadEntry", "address: 10.0.0.1\nports: {http: 80}\nlabels: {a: b}", ""},
		{"WorkloadEntry", "address: a.test", ""},
		{"WorkloadEntry", "ports: {http: 80}", "!address: has no address"},
		{"WorkloadEntry", "address: a b", "!address: no host name"},
		{"WorkloadEntry", "address: 10.0.0.1\nports: {http: 0}", "!ports[\"http\"]: 0 is no port"},
		{"WorkloadEntry", "address: unix:///run/x.sock\nports: {http: 80}", "!address: one port"},
		{"WorkloadGroup", "template: {ports: {http: 80}}\nprobe: {httpGet: {port: 80}}", ""},
		{"WorkloadGroup", "metadata: {}", "!template: is missing"},
		{"WorkloadGroup", "template: {}\nmetadata: {labels: {'a b': c}}", "!metadata.labels: is no label"},
		{"WorkloadGroup", "template: {address: 10.0.0.1}", "?template.address: no effect"},
		{"WorkloadGroup", "template: {}\nprobe: {periodSeconds: -1, tcpSocket: {port: 80}}", "!probe.periodSeconds: negative"},
		{"WorkloadGroup", "template: {}\nprobe: {}", "!probe: how health is asked"},
		{"WorkloadGroup", "template: {}\nprobe: {exec: {}}", "!probe.exec.command: is missing"},
		{"WorkloadGroup", "template: {}\nprobe: {httpGet: {port: 80, scheme: ftp}}", "!probe.httpGet.scheme: no scheme"},
		{se, strings.Replace(goodEntry, "10.0.0.1}", "'unix://relative'}", 1), "!endpoints[0].address: no absolute path"},
		{se, strings.Replace(goodEntry, "10.0.0.1}", "10.0.0.1, labels: {'a b': c}}", 1), "!endpoints[0].labels: is no label"},
		{se, strings.Replace(goodEntry, "STATIC", "NONE", 1), "!endpoints: has no endpoints"},
		{se, "hosts: [a.test]\nports: [{number: 80, name: http, protocol: HTTP}]\n", "?resolution: needs interception"},
		{se, strings.Replace(goodEntry, "STATIC", "DNS_ROUND_ROBIN", 1), ""},
		{se, strings.Replace(strings.Replace(goodEntry, "STATIC", "DNS_ROUND_ROBIN", 1), "10.0.0.1}", "a}, {address: b}", 1), "!endpoints: at most one"},
		{se, "hosts: ['*.test']\nresolution: DNS\nports: [{number: 80, name: http, protocol: HTTP}]\n", "!hosts[0]: cannot be resolved by DNS"},
		{se, goodEntry + "workloadSelector: {labels: {a: b}}", "!workloadSelector: excludes endpoints"},
		{se, goodEntry + "exportTo: ['~']", ""},
		{se, strings.Replace(goodEntry, "[a.test]", "['*a.test']", 1), ""},
		{se, "hosts: [a.test]\nresolution: DNS", "?ports: is none"},
		{se, goodEntry + "exportTo: ['not a namespace']", "!exportTo[0]: is no namespace"},
		{se, goodEntry + "addresses: [10.0.0.0/33]", "!addresses[0]: neither an IP address nor a CIDR"},
		{se, goodEntry + "subjectAltNames: [a]", ""},

		{dr, "host: a", ""},
		{dr, "host: ''", "!host: is empty"},
		{dr, "host: a\ntrafficPolicy: {}", "!trafficPolicy: says nothing"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: SIMPLE}}", ""},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: MUTUAL, clientCertificate: /c}}", "!trafficPolicy.tls.privateKey: is missing"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: MUTUAL, clientCertificate: c, privateKey: /k}}", "!trafficPolicy.tls.clientCertificate: no absolute path"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, caCertificates: /a~b}}", "!trafficPolicy.tls.caCertificates: has a ~"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, credentialName: x}}", "!trafficPolicy.tls.credentialName: by the name of a secret"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, credentialName: x, caCertificates: /c}}", "!trafficPolicy.tls.caCertificates: excludes credentialName"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true, caCertificates: /c}}", "!trafficPolicy.tls.caCertificates: excludes insecureSkipVerify"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: MUTUAL, clientCertificate: /c, privateKey: /k, insecureSkipVerify: true, subjectAltNames: [a]}}", "!trafficPolicy.tls.subjectAltNames: excludes insecureSkipVerify"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: ISTIO_MUTUAL, caCertificates: /c}}", "?trafficPolicy.tls.caCertificates: no effect"},
		{dr, "host: a\ntrafficPolicy: {tls: {mode: SIMPLE, sni: 'a b'}}", "!trafficPolicy.tls.sni: no host name"},
		{dr, "host: a\ntrafficPolicy: {proxyProtocol: {version: V2}, tunnel: {targetHost: a.test, targetPort: 1}}", "!trafficPolicy.tunnel: excludes proxyProtocol"},
		{dr, "host: a\ntrafficPolicy: {retryBudget: {percent: 101}}", "!trafficPolicy.retryBudget.percent: no percentage"},
		{dr, "host: a\ntrafficPolicy: {connectionPool: {http: {http2KeepAlive: {timeout: 1s}}}}", "!trafficPolicy.connectionPool.http.http2KeepAlive.interval: is missing"},
		{dr, "host: a\ntrafficPolicy: {portLevelSettings: [{port: {number: 1}}]}", "!trafficPolicy.portLevelSettings[0]: say nothing"},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: a, attributes: [{name: b}, {name: b}]}}}}", "!trafficPolicy.loadBalancer.consistentHash.httpCookie.attributes[1].name: given above"},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: true, minimumRingSize: 8, ringHash: {}}}}", "!trafficPolicy.loadBalancer.consistentHash.minimumRingSize: excludes"},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {warmup: {}}}", "!trafficPolicy.loadBalancer.warmup.duration: is missing"},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {warmup: {duration: 1s, minimumPercent: 101}}}", "!trafficPolicy.loadBalancer.warmup.minimumPercent: no percentage"},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {warmup: {duration: 1s, aggression: 0}}}", "!trafficPolicy.loadBalancer.warmup.aggression: not above 0"},
		{dr, locality + "failover: [{from: a, to: b}], distribute: [{from: a, to: {b: 100}}]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.distribute: excludes failover"},
		{dr, locality + "failover: [{from: a, to: a}]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.failover[0]: to itself"},
		{dr, locality + "failover: [{from: a/b, to: c}]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.failover[0].from: no region"},
		{dr, locality + "failover: [{from: a, to: b}]}}}", "?trafficPolicy.loadBalancer.localityLbSetting: no failover"},
		{dr, locality + "failover: [{from: a, to: b}], failoverPriority: [topology.kubernetes.io/zone]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.failoverPriority[0]: excludes"},
		{dr, locality + "distribute: [{from: a, to: {b: 90}}]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.distribute[0].to: add up to 90"},
		{dr, locality + "distribute: [{from: a, to: {b: 100, c: 0}}]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.distribute[0].to[\"c\"]: not from 1 to 100"},
		{dr, locality + "distribute: [{from: a, to: {b: 50, b/c: 50}}]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.distribute[0].to: overlap"},
		{dr, locality + "distribute: [{from: a/*, to: {b: 100}}, {from: a/b/*, to: {b: 100}}]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.distribute: overlap"},
		{dr, locality + "distribute: [{from: 'a/*/c', to: {b: 100}}]}}}", "!trafficPolicy.loadBalancer.localityLbSetting.distribute: no locality"},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {consistentHash: {}}}", "!trafficPolicy.loadBalancer.consistentHash: what is hashed"},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}", ""},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 10}}}}", "!trafficPolicy.loadBalancer.consistentHash.maglev.tableSize: no prime"},
		{dr, "host: a\ntrafficPolicy: {outlierDetection: {maxEjectionPercent: 101}}", "!trafficPolicy.outlierDetection.maxEjectionPercent: no percentage"},
		{dr, "host: a\ntrafficPolicy: {outlierDetection: {interval: 0s}}", "!trafficPolicy.outlierDetection.interval: too short"},
		{dr, "host: a\ntrafficPolicy: {connectionPool: {}}", "!trafficPolicy.connectionPool: says nothing"},
		{dr, "host: a\ntrafficPolicy: {connectionPool: {tcp: {maxConnections: -1}}}", "!trafficPolicy.connectionPool.tcp.maxConnections: negative"},
		{dr, "host: a\ntrafficPolicy: {portLevelSettings: [{loadBalancer: {simple: RANDOM}}]}", "!trafficPolicy.portLevelSettings[0].port.number: no port"},
		{dr, "host: a\nsubsets: [{name: v_1}]", "!subsets[0].name: no subset's name"},
		{dr, "host: a\nsubsets: [{name: a}, {name: a}]", "!subsets[1].name: called a already"},
		{dr, "host: a\nworkloadSelector: {matchLabels: {a: b}}\nexportTo: [ns]", ""},
		{dr, "host: a\nworkloadSelector: {matchLabels: {a: b}}\nexportTo: ['*']", "!exportTo[0]: own namespace only"},
		{dr, "host: a\nworkloadSelector: {matchLabels: {a: '*'}}", "!workloadSelector.matchLabels[\"a\"]: stands for itself"},
		{dr, "host: a\nworkloadSelector: {}", "?workloadSelector: every workload"},
		{dr, "host: a\nexportTo: [., ns]", "!exportTo[1]: given twice"},
		{dr, "host: a\nexportTo: [a, '*']", "!exportTo[1]: nothing for others"},
		{dr, "host: a\nexportTo: ['~']", "!exportTo[0]: from everyone"},
		{dr, "host: a\ntrafficPolicy: {tunnel: {targetHost: a.test, targetPort: 443, protocol: GET}}", "!trafficPolicy.tunnel.protocol: no way"},
		{dr, "host: a\ntrafficPolicy: {tunnel: {targetHost: '*.test', targetPort: 443}}", "!trafficPolicy.tunnel.targetHost: no target"},
		{dr, "host: a\ntrafficPolicy: {tunnel: {targetHost: a.test}}", "!trafficPolicy.tunnel.targetPort: no port"},
		{dr, "host: a\ntrafficPolicy: {loadBalancer: {simple: RANDOM, warmup: {duration: 1s}}}", "?trafficPolicy.loadBalancer.warmup: only ROUND_ROBIN"},

		{sc, "egress: [{hosts: ['./*']}]", ""},
		{sc, "{}", "!: says nothing"},
		{sc, "workloadSelector: {}\negress: [{hosts: ['./*']}]", "?workloadSelector: no labels"},
		{sc, "workloadSelector: {labels: {app: 'a*'}}\negress: [{hosts: ['./*']}]", "!workloadSelector.labels[\"app\"]: no label's value"},
		{sc, "egress: [{hosts: ['*']}]", "!egress[0].hosts[0]: no namespace"},
		{sc, "egress: [{hosts: []}]", "!egress[0].hosts: no host"},
		{sc, "egress: [{hosts: ['a_b/*']}]", "!egress[0].hosts[0]: is no namespace"},
		{sc, "egress: [{hosts: ['~/a.test']}]", "!egress[0].hosts[0]: nothing at all"},
		{sc, "egress: [{hosts: ['~/*']}]", ""},
		{sc, "egress: [{hosts: ['./a.*.test']}]", "!egress[0].hosts[0]: only a whole first label"},
		{sc, "egress: [{hosts: ['./a.test', 'ns/a.test']}]", "?egress[0].hosts[1]: named already"},
		{sc, "egress: [{hosts: ['*/*', 'b/*']}]", "?egress[0].hosts[1]: named already"},
		{sc, "egress: [{hosts: ['./*']}, {port: {number: 80, protocol: HTTP}, hosts: ['./*']}]", "!egress[0].port: must be the last"},
		{sc, "egress: [{port: {number: 80, protocol: HTTP}, hosts: ['./*']}, {port: {number: 80, protocol: TCP}, hosts: ['./*']}]", "!egress[1].port.number: given twice"},
		{sc, "egress: [{port: {number: 80, protocol: HTPT}, hosts: ['./*']}]", "!egress[0].port.protocol: is no protocol"},
		{sc, "egress: [{port: {number: 80, protocol: HTTP_PROXY}, hosts: ['./*']}]", "!egress[0].port.protocol: not carried out"},
		{sc, "egress: [{port: {number: 0, protocol: HTTP}, bind: 'unix:///a', hosts: ['./*']}]", "!egress[0].port.number: Unix sockets"},
		{sc, "egress: [{bind: 'unix:///a', hosts: ['./*']}]", "!egress[0].bind: Unix sockets"},
		{sc, "egress: [{port: {number: 80, protocol: HTTP}, bind: here, hosts: ['./*']}]", "!egress[0].bind: no IP address"},
		{sc, "egress: [{port: {number: 80, protocol: HTTP, targetPort: 8}, hosts: ['./*']}]", "!egress[0].port.targetPort: no effect"},
		{sc, "outboundTrafficPolicy: {mode: REGISTRY_ONLY, egressProxy: {host: a.test, port: {number: 1}}}", "!outboundTrafficPolicy.egressProxy: only taken with mode ALLOW_ANY"},
		{sc, "outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: a.test}}", "!outboundTrafficPolicy.egressProxy.port: no port"},
		{sc, "outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: a, port: {number: 1}}}", "!outboundTrafficPolicy.egressProxy.host: no full host name"},
		{sc, "inboundConnectionPool: {}", "!inboundConnectionPool: says nothing"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: '127.0.0.1:8080'}]", ""},
		{sc, "ingress: [{defaultEndpoint: '127.0.0.1:8080'}]", "!ingress[0].port: no port"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTP}}, {port: {number: 80, protocol: HTTP}}]", "!ingress[1].port.number: given twice"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: '10.0.0.1:80'}]", "!ingress[0].defaultEndpoint: is not this machine"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: '127.0.0.1'}]", "!ingress[0].defaultEndpoint: no address with a port"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: '127.0.0.1:http'}]", "!ingress[0].defaultEndpoint: no port"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: 'unix://a'}]", "!ingress[0].defaultEndpoint: no absolute path"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTP}, tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}]", "!ingress[0].tls: only HTTPS and TLS"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTPS}, tls: {mode: PASSTHROUGH}}]", "!ingress[0].tls.mode: ends no TLS"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTPS}, tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k, subjectAltNames: [a]}}]", "!ingress[0].tls.subjectAltNames: not taken"},
		{sc, "ingress: [{port: {number: 80, protocol: HTTPS}, tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k, httpsRedirect: true}}]", "!ingress[0].tls.httpsRedirect: not taken in a Sidecar"},
		{sc, "ingress: [{port: {number: 80, protocol: TCP}, connectionPool: {http: {maxRetries: 1}}}]", "?ingress[0].connectionPool.http: only the settings of tcp"},

		{vs, goodRoute, ""},
		{vs, "http: [{" + to + "}]", ""},
		{vs, "gateways: [gw]\nhttp: [{" + to + "}]", "!gateways: is a delegate"},
		{vs, "tcp: [{" + to + "}]", "!tcp: is a delegate"},
		{vs, "http: [{delegate: {name: x}}]", "!http[0].delegate: a delegate cannot delegate"},
		{vs, "hosts: ['*']\nhttp: [{" + to + "}]", "!hosts[0]: not taken by sidecars"},
		{vs, "hosts: ['*']\ngateways: [gw]\nhttp: [{" + to + "}]", ""},
		{vs, "hosts: [a.test]\ngateways: ['a/b/c']\nhttp: [{" + to + "}]", "!gateways[0]: no gateway's name"},
		{vs, "hosts: [a.test]", "!http: has no route"},
		{vs, "hosts: [a.test]\ntcp: [{route: [{destination: {host: a.test}}]}]", ""},
		{vs, "hosts: [a.test]\ntcp: [{match: [{port: 1}]}]", "!tcp[0].route: no destination"},
		{vs, "hosts: [a.test]\ntcp: [{match: [{destinationSubnets: [10.0.0.0/33]}], route: [{destination: {host: a.test}}]}]", "!tcp[0].match[0].destinationSubnets[0]: neither an IP address nor a CIDR"},
		{vs, "hosts: [a.test]\ntcp: [{match: [{sourceSubnet: 10.0.0.0/8}], route: [{destination: {host: a.test}}]}]", "?tcp[0].match[0].sourceSubnet: not carried out"},
		{vs, "hosts: [a.test]\ntcp: [{" + to + "}, {" + to + "}]", "?tcp[1]: cannot be reached: tcp[0]"},
		{vs, "hosts: [a.test]\ntcp: [{route: [{destination: {host: a}}, {destination: {host: b}}]}]", "!tcp[0].route: no destination has a weight"},
		{vs, "hosts: [a.test]\ntls: [{" + to + "}]", "!tls[0].match: no match"},
		{vs, "hosts: [a.test]\ntls: [{match: [{port: 1}], " + to + "}]", "!tls[0].match[0].sniHosts: no server name"},
		{vs, "hosts: [a.test]\ntls: [{match: [{sniHosts: [b.test]}], " + to + "}]", "!tls[0].match[0].sniHosts[0]: not among the hosts"},
		{vs, "hosts: ['*.test']\ntls: [{match: [{sniHosts: [b.test, '*.c.test']}], " + to + "}]", ""},
		{vs, "hosts: ['*.test']\ntls: [{match: [{sniHosts: [10.0.0.1]}], " + to + "}]", "?tls[0].match[0].sniHosts[0]: no server name for an IP address"},
		{vs, "hosts: ['*.test']\ntls: [{match: [{sniHosts: [b.test]}, {sniHosts: [b.test]}], " + to + "}]", "?tls[0].match[1]: cannot be met: tls[0].match[0]"},
		{vs, http("name: x"), "!http[0]: goes nowhere"},
		{vs, http(to + "\nredirect: {uri: /x}"), "!http[0]: exclude each other"},
		{vs, http(to + "\ntimeout: 100us"), "!http[0].timeout: too short"},
		{vs, http("match: [{uri: {regex: '(?!x)'}}]\n" + to), "!http[0].match[0].uri.regex: no regular expression"},
		{vs, http("match: [{uri: {regex: '/(a|b|c)/[a-z0-9-]{8,36}(/.*)?'}}]\n" + to), ""},
		{vs, http("match: [{uri: {regex: '(\\pL{10}){100}'}}]\n" + to), ""},
		{vs, http("match: [{uri: {regex: '((a|bc){10}(.|\\pL){10}){60}'}}]\n" + to), ""},
		{vs, http("match: [{uri: {regex: '(/abcdefghijklmnop){1000}'}}]\n" + to), "!http[0].match[0].uri.regex: write smaller repeat counts"},
		{vs, http("match: [{uri: {regex: '[\\x{e9}-\\x{100}]'}}]\n" + to), "!http[0].match[0].uri.regex: the last byte"},
		{vs, http("match: [{uri: {regex: '\\\\x{100}\\p{Lu}\\pN\\p{^Greek}\\p{Any}'}}]\n" + to), ""},
		{vs, http("match: [{uri: {regex: '\\p{letter}'}}]\n" + to), "!http[0].match[0].uri.regex: no class that Envoy knows"},
		{vs, http("match: [{uri: {}}]\n" + to), "?http[0].match[0].uri: what is matched"},
		{vs, http("match: [{headers: {'a b': {exact: c}}}]\n" + to), "!http[0].match[0].headers[\"a b\"]: no header's name"},
		{vs, http("match: [{uri: {prefix: v1}}]\n" + to), "?http[0].match[0].uri: no request's path begins so"},
		{vs, http("route: [{destination: {host: a}}, {destination: {host: b}}]"), "!http[0].route: no destination has a weight"},
		{vs, http("route: [{destination: {host: a}, weight: -1}]"), "!http[0].route[0].weight: negative"},
		{vs, http("route: [{weight: 1}]"), "!http[0].route[0].destination: is missing"},
		{vs, http("route: [{destination: {host: a, port: {number: 70000}}}]"), "!http[0].route[0].destination.port.number: no port"},
		{vs, http(to + "\nretries: {attempts: 1, retryOn: 'now and then'}"), "!http[0].retries.retryOn: is no condition"},
		{vs, http(to + "\nretries: {attempts: 2, retryOn: '5xx,503'}"), ""},
		{vs, http(to + "\nretries: {attempts: 2, retryOn: '5xx, 503'}"), "!http[0].retries.retryOn: without spaces"},
		{vs, http(to + "\nretries: {attempts: 2, retryOn: '555'}"), "!http[0].retries.retryOn: is no condition"},
		{vs, http(to + "\nretries: {attempts: 2, retryRemoteLocalities: true}"), ""},
		{vs, http("redirect: {}"), "!http[0].redirect: changes nothing"},
		{vs, http("redirect: {uri: /x, redirectCode: 200}"), "!http[0].redirect.redirectCode: no redirect"},
		{vs, http("directResponse: {status: 99}"), "!http[0].directResponse.status: no status"},
		{vs, http(to + "\nrewrite: {}"), "!http[0].rewrite: changes nothing"},
		{vs, http("delegate: {name: x}"), ""},
		{vs, http("delegate: {name: x}\n" + to), "!http[0]: delegate excludes route"},
		{vs, http("delegate: {namespace: x}"), "!http[0].delegate.name: no VirtualService's name"},
		{vs, http("delegate: {name: x, namespace: 'x y'}"), "!http[0].delegate.namespace: no namespace"},
		{vs, http(to + "\nfault: {abort: {httpStatus: 500, percentage: {value: 101}}}"), "!http[0].fault.abort.percentage.value: no percentage"},
		{vs, http(to + "\nfault: {abort: {http2Error: x}}"), "!http[0].fault.abort.http2Error: not carried out"},
		{vs, http(to + "\nheaders: {request: {set: {':path': x}}}"), "!http[0].headers.request.set[\":path\"]: cannot be changed"},
		{vs, http(to + "\nheaders: {request: {set: {host: x}}}"), ""},
		{vs, http(to + "\nheaders: {response: {set: {host: x}}}"), "!http[0].headers.response.set[\"host\"]: cannot be changed"},
		{vs, "hosts: [10.0.0.0/8]\nhttp: [{" + to + "}]", "!hosts[0]: no host name"},
		{vs, "hosts: [10.0.0.1]\nhttp: [{" + to + "}]", ""},
		{vs, "hosts: ['*.test', a.test]\nhttp: [{" + to + "}]", "!hosts[1]: overlap"},
		{vs, "hosts: [a.test]\nexportTo: [., ns]\nhttp: [{" + to + "}]", "!exportTo[1]: given twice"},
		{vs, "hosts: [a.test]\nexportTo: ['*', b]\nhttp: [{" + to + "}]", "!exportTo[0]: leaves nothing"},
		{vs, "hosts: [a.test]\ngateways: [gw.ns.svc.cluster.local]\nhttp: [{" + to + "}]", "?gateways[0]: ns/gw"},
		{vs, http("route: [{destination: {host: 10.0.0.1}}]"), "!http[0].route[0].destination.host: no destination"},
		{vs, http("route: [{destination: {host: '*.test'}}]"), ""},
		{vs, http(to + "\ntimeout: 0s"), "!http[0].timeout: too short"},
		{vs, http("match: [{uri: {prefix: ''}}]\n" + to), ""},
		{vs, http("match: [{headers: {'a': {regex: '*'}}}]\n" + to), "!http[0].match[0].headers[\"a\"].regex: no regular expression"},
		{vs, http("match: [{withoutHeaders: {'a': {regex: '*'}}}]\n" + to), ""},
		{vs, http("match: [{headers: {'@request.auth.claims.a': {exact: b}}}]\n" + to), "!http[0].match[0].headers[\"@request.auth.claims.a\"]: not carried out"},
		{vs, http("match: [{headers: {':path': {exact: b}}}]\n" + to), ""},
		{vs, http("match: [{headers: {':other': {exact: b}}}]\n" + to), "!http[0].match[0].headers[\":other\"]: no header's name"},
		{vs, http("match: [{sourceNamespace: 'a b'}]\n" + to), "!http[0].match[0].sourceNamespace: no namespace"},
		{vs, http("match: [{gateways: [mesh], sourceLabels: {a: b}}]\n" + to), "?http[0].match[0].gateways: have no effect"},
		{vs, http("match: [{uri: {regex: 'a'}, ignoreUriCase: true}]\n" + to), "?http[0].match[0].ignoreUriCase: (?i)"},
		{vs, http("match: [{uri: {prefix: /a}}, {uri: {exact: /ab}}]\n" + to), "?http[0].match[1]: cannot be met: http[0].match[0]"},
		{vs, http("match: [{uri: {prefix: /a}, method: {exact: GET}}, {uri: {prefix: /a}}]\n" + to), ""},
		{vs, http("match: [{uri: {prefix: /a}}, {uri: {prefix: /ab}, method: {exact: GET}}]\n" + to), "?http[0].match[1]: cannot be met"},
		{vs, http("match: [{method: {exact: GET}}, {uri: {prefix: /ab}, method: {exact: GET}}]\n" + to), "?http[0].match[1]: cannot be met"},
		{vs, http("match: [{uri: {prefix: /A}}, {uri: {prefix: /a}, ignoreUriCase: true}]\n" + to), ""},
		{vs, http("redirect: {uri: /x}\nrewrite: {uri: /y}"), "!http[0].rewrite: without a destination"},
		{vs, http("redirect: {uri: /x}\ntimeout: 1s"), "?http[0].timeout: no effect"},
		{vs, http("redirect: {uri: /x, prefixRewrite: /y}"), "!http[0].redirect.uri: excludes prefixRewrite"},
		{vs, http("match: [{uri: {exact: /x}}]\nredirect: {prefixRewrite: /y}"), "!http[0].redirect.prefixRewrite: prefix in all"},
		{vs, http("redirect: {uri: /x, scheme: ftp}"), "!http[0].redirect.scheme: no scheme"},
		{vs, http(to + "\nrewrite: {uriRegexRewrite: {match: '(a)', rewrite: '\\2'}}"), "!http[0].rewrite.uriRegexRewrite.rewrite: stands for nothing"},
		{vs, http(to + "\nrewrite: {uriRegexRewrite: {match: '(a)', rewrite: '\\1'}}"), ""},
		{vs, http(to + "\nrewrite: {uriRegexRewrite: {match: a}}"), "!http[0].rewrite.uriRegexRewrite.rewrite: is empty"},
		{vs, http(to + "\nrewrite: {authority: a}\nheaders: {request: {set: {host: b}}}"), "!http[0]: set more than once"},
		{vs, http(to + "\nheaders: {request: {set: {'a b': c}}}"), "?http[0].headers.request.set[\"a b\"]: no header's name"},
		{vs, http(to + "\nheaders: {request: {add: {a: '%NOTHING%'}}}"), "!http[0].headers.request.add[\"a\"]: nothing that Envoy knows"},
		{vs, http(to + "\nheaders: {response: {remove: [host]}}"), "!http[0].headers.response.remove[0]: cannot be changed"},
		{vs, http(to + "\nfault: {abort: {httpStatus: 500}}"), "?http[0].fault.abort.percentage: no request meets"},
		{vs, http(to + "\nfault: {abort: {httpStatus: 500, percentage: {value: 0.00001}}}"), "!http[0].fault.abort.percentage.value: too small"},
		{vs, http(to + "\nfault: {abort: {grpcStatus: unavailable, percentage: {value: 1}}}"), "!http[0].fault.abort.grpcStatus: no gRPC status"},
		{vs, http(to + "\nfault: {delay: {exponentialDelay: 1s, percentage: {value: 1}}}"), "!http[0].fault.delay.exponentialDelay: not carried out"},
		{vs, http(to + "\ncorsPolicy: {allowMethods: [get]}"), "!http[0].corsPolicy.allowMethods[0]: no method"},
		{vs, http(to + "\ncorsPolicy: {allowOrigins: [{exact: ''}]}"), "!http[0].corsPolicy.allowOrigins[0].exact: is empty"},
		{vs, http(to + "\ncorsPolicy: {maxAge: 1500ms}"), "!http[0].corsPolicy.maxAge: whole seconds"},
		{vs, http(to + "\nmirror: {host: a}\nmirrors: [{destination: {host: b}}]"), "!http[0].mirror: excludes mirrors"},
		{vs, http(to + "\nmirrors: [{percentage: {value: 1}}]"), "!http[0].mirrors[0].destination: is missing"},
		{vs, http(to + "\nmirrorPercentage: {value: 1}"), "?http[0].mirrorPercentage: without mirror"},
		{vs, http(to) + "\n- " + to, "?http[1]: cannot be reached"},

		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['*']}]", ""},
		{gw, "selector: {a: b}", "!servers: has no server"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}}]", "!servers[0].hosts: has no host"},
		{gw, "servers: [{port: {number: 80, protocol: HTTP}, hosts: ['*']}]", "!servers[0].port.name: has no name"},
		{gw, "servers: [{port: {number: 80, name: h}, hosts: ['*']}]", "!servers[0].port.protocol: has no protocol"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: TCP}, hosts: ['*']}]", ""},
		{gw, "servers: [{port: {number: 80, name: h, protocol: MONGO}, hosts: ['*'], tls: {mode: SIMPLE}}]", "!servers[0].tls: has no TLS"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: TLS}, hosts: ['*']}]", "!servers[0].tls: needs tls"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: TLS}, hosts: ['*'], tls: {mode: PASSTHROUGH}}]", ""},
		{gw, httpsPort + "{mode: PASSTHROUGH, serverCertificate: /c}", "?servers[0].tls: no effect"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['a b/*']}]", "!servers[0].hosts[0]: no namespace"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['*'], tls: {mode: SIMPLE}}]", "!servers[0].tls: httpsRedirect"},
		{gw, "servers: [{port: {number: 443, name: s, protocol: HTTPS}, hosts: ['*']}]", "!servers[0].tls: needs tls"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k}", ""},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c~d, privateKey: /k}", "!servers[0].tls.serverCertificate: has a ~"},
		{gw, httpsPort + "{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /a~b}", "!servers[0].tls.caCertificates: has a ~"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c}", "!servers[0].tls.privateKey: is missing"},
		{gw, httpsPort + "{mode: SIMPLE, credentialName: x}", "!servers[0].tls.credentialName: by the name of a secret"},
		{gw, httpsPort + "{mode: MUTUAL, serverCertificate: /c, privateKey: /k}", "!servers[0].tls.caCertificates: needs the certificates"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['*'], name: one}, {port: {number: 81, name: i, protocol: HTTP}, hosts: ['*'], name: one}]", "?servers[1].name: called one already"},
		{gw, "servers: [{hosts: ['*']}]", "!servers[0].port: is missing"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP, targetPort: 8080}, hosts: ['*']}]", "!servers[0].port.targetPort: has no effect"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTPT}, hosts: ['*']}]", "!servers[0].port.protocol: no protocol"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['*'], bind: 10.0.0.256}]", "!servers[0].bind: no IP address"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['*'], bind: 'unix:///run/x'}]", "!servers[0].bind: no IP address"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['*'], defaultEndpoint: x}]", "?servers[0].defaultEndpoint: not carried out"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['a/b/c.test']}]", "!servers[0].hosts[0]: no host name"},
		{gw, "servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['~/c.test']}]", "!servers[0].hosts[0]: no namespace"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k, httpsRedirect: true}", "?servers[0].tls.httpsRedirect: has no effect"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: c, privateKey: /k}", "?servers[0].tls.serverCertificate: below the folder"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k, caCrl: /r}", "!servers[0].tls.caCrl: mode SIMPLE"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k, subjectAltNames: [a]}", "?servers[0].tls: no effect"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k, tlsCertificates: [{serverCertificate: /c, privateKey: /k}]}", "!servers[0].tls.tlsCertificates: keep one"},
		{gw, httpsPort + "{mode: SIMPLE, tlsCertificates: [{serverCertificate: /c, privateKey: /k}, {serverCertificate: /d, privateKey: /l}]}", ""},
		{gw, httpsPort + "{mode: SIMPLE, tlsCertificates: [{serverCertificate: /c}]}", "!servers[0].tls.tlsCertificates[0].privateKey: is missing"},
		{gw, httpsPort + "{mode: MUTUAL, caCertificates: /a, tlsCertificates: [{serverCertificate: /c, privateKey: /k, caCertificates: /b}]}", "?servers[0].tls.tlsCertificates[0].caCertificates: has no effect"},
		{gw, httpsPort + "{mode: OPTIONAL_MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /a, caCrl: /r, subjectAltNames: [a]}", ""},
		{gw, httpsPort + "{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /a, verifyCertificateSpki: [x]}", "!servers[0].tls.verifyCertificateSpki[0]: base64"},
		{gw, httpsPort + "{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /a, verifyCertificateHash: [x]}", "!servers[0].tls.verifyCertificateHash[0]: hexadecimal"},
		{gw, httpsPort + "{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /a, verifyCertificateHash: ['" + strings.Repeat("Ab", 32) + "']}", ""},
		{gw, httpsPort + "{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertificates: /a, credentialNames: [x]}", "!servers[0].tls.credentialNames: by the name of a secret"},
		{gw, httpsPort + "{mode: ISTIO_MUTUAL}", "!servers[0].tls.mode: not carried out"},
		{gw, httpsPort + "{mode: ISTIO_MUTUAL, serverCertificate: /c}", "!servers[0].tls: excludes others"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k, cipherSuites: [ECDHE-RSA-AES128-GCM-SHA256, NONE-SUCH]}", "?servers[0].tls.cipherSuites[1]: no cipher suite"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k, cipherSuites: [AES128-SHA, AES128-SHA]}", "?servers[0].tls.cipherSuites[1]: given twice"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k, minProtocolVersion: TLSV1_0}", "?servers[0].tls.minProtocolVersion: cipher suites"},
		{gw, httpsPort + "{mode: AUTO_PASSTHROUGH}", "!servers[0].tls.mode: AUTO_PASSTHROUGH"},
		{ef, "{}", ""},
		{ef, patched("applyTo: CLUSTER, patch: {operation: ADD, value: {name: lua_cluster}}"), ""},
		{ef, "targetRefs: [{kind: Gateway, name: x}]", "!targetRefs: Kubernetes Gateway API"},
		{ef, "workloadSelector: {}", "?workloadSelector: every workload"},
		{ef, "workloadSelector: {labels: {'a*': b}}", "!workloadSelector.labels: no label"},
		{ef, patched("patch: {operation: REMOVE}"), "!configPatches[0].applyTo: is missing"},
		{ef, patched("applyTo: CLUSTER"), "!configPatches[0].patch: is missing"},
		{ef, patched("applyTo: CLUSTER, patch: {}"), "!configPatches[0].patch.operation: is missing"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: MERGE}"), "!configPatches[0].patch.value: is missing"},
		{ef, patched("applyTo: BOOTSTRAP, patch: {operation: MERGE, value: {admin: {}}}"), "!configPatches[0].applyTo: bootstrap_override"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: MERGE, value: {no_such_field: 1}}"), "?configPatches[0].patch.value: no_such_field"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: soon}}"), "!configPatches[0].patch.value: no Cluster"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {'@type': nonsense}}}"), "!configPatches[0].patch.value: is no type"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {'@type': type.googleapis.com/envoy.config.filter.http.lua.v2.Lua}}}"), "!configPatches[0].patch.value: is gone"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a, typed_config: {'@type': type.googleapis.com/udpa.type.v1.TypedStruct}}}"), "!configPatches[0].patch.value: without type_url"},
		{ef, patched("applyTo: CLUSTER, match: {proxy: {proxyVersion: '('}}, patch: {operation: REMOVE}"), "!configPatches[0].match.proxy.proxyVersion: no regular expression"},
		{ef, patched("applyTo: CLUSTER, match: {proxy: {metadata: {NAME: a}}}, patch: {operation: REMOVE}"), "?configPatches[0].match.proxy.metadata: one proxy alone"},
		{ef, patched("applyTo: CLUSTER, match: {listener: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match: found by cluster"},
		{ef, patched("applyTo: LISTENER, match: {cluster: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match: found by listener"},
		{ef, patched("applyTo: VIRTUAL_HOST, match: {cluster: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match: found by routeConfiguration"},
		{ef, patched("applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {}}}}, patch: {operation: REMOVE}"), "!configPatches[0].match.listener.filterChain.filter.name: is missing"},
		{ef, patched("applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: a, subFilter: {name: b}}}}}, patch: {operation: REMOVE}"), "!configPatches[0].match.listener.filterChain.filter.subFilter: HTTP_FILTER only"},
		{ef, patched("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: a, subFilter: {name: b}}}}}, patch: {operation: REMOVE}"), "!configPatches[0].match.listener.filterChain.filter.name: connection manager"},
		{ef, patched("applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.http_connection_manager}}}}, patch: {operation: ADD, value: {name: a}}"), "?configPatches[0].match.listener.filterChain.filter.name: name of old"},
		{ef, patched("applyTo: LISTENER, match: {listener: {portName: a}}, patch: {operation: REMOVE}"), "?configPatches[0].match.listener.portName: no effect"},
		{ef, patched("applyTo: HTTP_FILTER, patch: {operation: REMOVE}"), "?configPatches[0].patch.operation: names the filter"},
		{ef, patched("applyTo: ROUTE_CONFIGURATION, patch: {operation: REMOVE}"), "?configPatches[0].patch.operation: does nothing"},
		{ef, patched("applyTo: CLUSTER, patch: {operation: ADD, value: {name: a}, filterClass: AUTHZ}"), "?configPatches[0].patch.filterClass: not carried out"},
		{ef, patched("applyTo: CLUSTER, match: {context: WAYPOINT, waypoint: {}}, patch: {operation: REMOVE}"), "?configPatches[0].match.context: no waypoints"},
		{ef, patched("applyTo: CLUSTER, match: {context: WAYPOINT, cluster: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match: only waypoint"},
		{ef, patched("applyTo: CLUSTER, match: {context: GATEWAY, waypoint: {}}, patch: {operation: REMOVE}"), "!configPatches[0].match.waypoint: context WAYPOINT"},
		{ef, patched("applyTo: CLUSTER, match: {context: WAYPOINT, waypoint: {portNumber: 65536}}, patch: {operation: REMOVE}"), "!configPatches[0].match.waypoint.portNumber: no port"},
		{gw, httpsPort + "{mode: SIMPLE, serverCertificate: /c, privateKey: /k, minProtocolVersion: TLSV1_3, maxProtocolVersion: TLSV1_2}", "?servers[0].tls.maxProtocolVersion: below the minimum"},
	} {
		t.Run(test.kind+"/"+test.want, func(t *testing.T) {
			var found []object.Finding
			readOne(t, test.kind, test.spec, func(o *object.Object) []object.Finding {
				found = validate.Object(o)
				return found
			})
			if test.want == "" {
				if len(found) > 0 {
					t.Errorf("%s: %+v", test.spec, found)
				}
				return
			}
			field, words, _ := strings.Cut(test.want[1:], ": ")
			severity := map[byte]string{'!': "error", '?': "warning"}[test.want[0]]
			for _, f := range found {
				if f.Field == field && strings.Contains(f.Message+f.Cure, words) && string(f.Severity) == severity {
					return
				}
			}
			t.Errorf("%s:\n want %s\n got %+v", test.spec, test.want, found)
		})
	}
}

func readOne(t *testing.T, kind, spec string, check func(*object.Object) []object.Finding) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.yaml")
	content := "apiVersion: networking.istio.io/v1\nkind: " + kind + "\nmetadata: {name: x}\nspec:\n  " + strings.ReplaceAll(spec, "\n", "\n  ") + "\n"
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	called := false
	s := store.New(store.Options{Paths: []string{path}, Namespace: "ns", Validate: func(o *object.Object) []object.Finding { called = true; return check(o) }})
	s.Load()
	if !called {
		t.Fatalf("not read: %v", s.Problems())
	}
	for _, p := range s.Problems() {
		if p.Line < 5 && p.Field != "spec.hosts" && !strings.Contains(p.Field, "servers") && !strings.Contains(p.Field, "http") && p.Field != "spec.tls" {
			t.Errorf("line %d of %s", p.Line, p)
		}
	}
}
