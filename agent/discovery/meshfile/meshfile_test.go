package meshfile_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	meshapi "istio.io/api/mesh/v1alpha1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshfile"
)

// TestFields parses single fields. want is "" if there is no problem, else "field:line: text",
// after ! for an error or ? for a warning.
func TestFields(t *testing.T) {
	for _, test := range []struct{ yaml, want string }{
		{"", ""},
		{"# nothing\n", ""},
		{"rootNamespace: mesh\nconnectTimeout: 3s\nprotocolDetectionTimeout: 100ms\ndnsRefreshRate: 5s\nh2UpgradePolicy: UPGRADE\n", ""},
		{"outboundTrafficPolicy: {mode: REGISTRY_ONLY}\ndefaultServiceExportTo: [.]\naccessLogFile: /dev/stdout\naccessLogEncoding: JSON\n", ""},
		{"defaultHttpRetryPolicy: {attempts: 0}\ntcpKeepalive: {time: 10s, interval: 5s, probes: 3}\n" +
			"pathNormalization: {normalization: MERGE_SLASHES}\n", ""},
		{"connectTimeot: 3s", "!connectTimeot:1: did you mean connectTimeout?"},
		{"\nconnectTimeout: 31s", "!connectTimeout:2: 31s is too long"},
		{"connectTimeout: 100us", "!connectTimeout:1: too short"},
		{"connectTimeout: 3", "!connectTimeout:1: must be a duration"},
		{"protocolDetectionTimeout: 1ms", "?protocolDetectionTimeout:1: so short"},
		{"protocolDetectionTimeout: -1s", "!protocolDetectionTimeout:1: no time to wait"},
		{"proxyListenPort: 70000", "!proxyListenPort:1: 70000 is not a valid port"},
		{"proxyHttpPort: 8080", ""},
		{"proxyHttpPort: 70000", "!proxyHttpPort:1: 70000 is not a valid port"},
		{"proxyHttpPort: 15001", "!proxyHttpPort:1: the port of captured connections"},
		{"proxyListenPort: 8080\nproxyHttpPort: 8080", "!proxyHttpPort:2: the port of captured"},
		{"rootNamespace: Not.A", "!rootNamespace:1: no namespace"},
		{"defaultServiceExportTo: ['a b']", "!defaultServiceExportTo[0]:1: no namespace"},
		{"outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: SIMPLE}}", ""},
		{"outboundTrafficPolicy: {tls: {mode: SIMPLE}}",
			"?outboundTrafficPolicy.tls:1: has no effect"},
		{"outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: ISTIO_MUTUAL}}",
			"!outboundTrafficPolicy.tls.mode:1: no certificate of the mesh"},
		{"outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: MUTUAL, privateKey: /k}}",
			"!outboundTrafficPolicy.tls.clientCertificate:1: MUTUAL shows a certificate"},
		{"outboundTrafficPolicy: {mode: ANY}", "!outboundTrafficPolicy.mode:1: is not one of"},
		{"defaultHttpRetryPolicy: {attempts: 2, retryOn: sometimes}",
			"!defaultHttpRetryPolicy.retryOn:1: no condition"},
		{"localityLbSetting: {failover: [{from: eu, to: us}], enabled: true}", ""},
		{"localityLbSetting:\n  distribute: [{from: eu, to: {eu: 0, us: 100}}]",
			`!localityLbSetting.distribute[0].to["eu"]:2: 0 is not from 1 to 100`},
		{"localityLbSetting: {failover: [{from: '', to: us}]}",
			"!localityLbSetting.failover[0].from:1: is no region"},
		{"tcpKeepalive: {time: 10ms}", "!tcpKeepalive.time:1: too short"},
		{"accessLogFile: log", "!accessLogFile:1: not an absolute path"},
		{"accessLogFile: /dev/stdout\naccessLogEncoding: JSON\naccessLogFormat: '%PROTOCOL%'",
			"!accessLogFormat:3: is a line of text"},
		{"accessLogFormat: '%NOSUCH%'", "!accessLogFormat:1: NOSUCH"},
		{"accessLogFormat: '{\"a\": '", "!accessLogFormat:1: not a JSON object"},
		{"trustDomain: example.com\ntrustDomainAliases: [cluster.local, a.b.]", ""},
		{"trustDomain: spiffe://example.com", "!trustDomain:1: no trust domain"},
		{"trustDomainAliases:\n- a\n- A_b", "!trustDomainAliases[1]:3: no trust domain"},
		{"trustDomainAliases: ['']", "!trustDomainAliases[0]:1: no trust domain"},
		{"tlsDefaults: {minProtocolVersion: TLSV1_3, cipherSuites: [ECDHE-RSA-AES128-GCM-SHA256], ecdhCurves: [X25519MLKEM768, P-256]}", ""},
		{"tlsDefaults: {minProtocolVersion: TLSV1_1}",
			"!tlsDefaults.minProtocolVersion:1: is not one of"},
		{"tlsDefaults:\n  ecdhCurves:\n  - P-224", "?tlsDefaults.ecdhCurves[0]:3: no curve"},
		{"tlsDefaults: {ecdhCurves: [P-256, P-256]}", "?tlsDefaults.ecdhCurves[1]:1: twice"},
		{"tlsDefaults: {cipherSuites: [NONE]}", "?tlsDefaults.cipherSuites[0]:1: no cipher suite"},
		{"meshMTLS: {minProtocolVersion: TLSV1_3}", ""},
		{"meshMTLS: {ecdhCurves: [P-256]}", "!meshMTLS.ecdhCurves:1: not taken"},
		{"caCertificates: [{pem: nothing}]", "!caCertificates[0].pem:1: contains no PEM block"},
		{"caCertificates: [{}]", "!caCertificates[0].pem:1: contains no PEM block"},
		{"caCertificates:\n- spiffeBundleUrl: https://a.test/bundle", ""},
		{"caCertificates:\n- spiffeBundleUrl: http://a.test/bundle",
			"!caCertificates[0].spiffeBundleUrl:2: not an https URL"},
		{"caCertificates:\n- spiffeBundleUrl: https://me:secret@a.test/bundle",
			"!caCertificates[0].spiffeBundleUrl:2: has credentials"},
		{"caCertificates:\n- spiffeBundleUrl: a.test\n  trustDomains: [b.test]", ""},
		{"caCertificates:\n- spiffeBundleUrl: a.test\n  trustDomains: [spiffe://b.test]",
			"!caCertificates[0].trustDomains[0]:3: no trust domain"},
		{"caCertificates:\n- spiffeBundleUrl: a.test\n  certSigners: [b]",
			"?caCertificates[0].certSigners:3: has no effect"},
		{"enableAutoMtls: false", ""},
		{"discoverySelectors: [{matchLabels: {a: b}}]", "!discoverySelectors:1: not supported"},
		{"defaultConfig:\n  drainDuration: 10s",
			"?defaultConfig.drainDuration:2: outrider.toml: [envoy] drain_duration"},
		{"defaultConfig: {concurrency: 3, proxyMetadata: {A: b}}", ""},
		{"defaultConfig:\n  concurrency: -1", "!defaultConfig.concurrency:2: no number of workers"},
		{"defaultConfig:\n  proxyMetadata:\n    LD_PRELOAD: /x",
			`!defaultConfig.proxyMetadata["LD_PRELOAD"]:3: which code Envoy loads`},
		{"defaultConfig:\n  meshId: a", "?defaultConfig.meshId:2: not supported"},
		{"defaultConfig: {gatewayTopology: {numTrustedProxies: 2}}", ""},
		{"defaultConfig: {gatewayTopology: {proxyProtocol: {}}}",
			"?defaultConfig.gatewayTopology.proxyProtocol:1: not supported"},
		{"rootNamespace: a\n---\nrootNamespace: b", "!:2: second document"},
		{"[", "!:1: not valid YAML"},
		{"- a", "!:1: must be a mapping"},
	} {
		m, problems := meshfile.Parse("mesh.yaml", []byte(test.yaml))
		if test.want == "" {
			if len(problems) > 0 || m == nil {
				t.Errorf("%s\n got %v", test.yaml, problems)
			}
			continue
		}
		severity := condition.Error
		if test.want[0] == '?' {
			severity = condition.Warning
		}
		place, words, _ := strings.Cut(test.want[1:], ": ")
		at := strings.LastIndexByte(place, ':')
		if len(problems) != 1 || problems[0].Severity != severity ||
			problems[0].Field != place[:at] ||
			!strings.Contains(problems[0].String(), words) ||
			!strings.HasPrefix(problems[0].String(), "mesh.yaml"+place[at:]+":") {
			t.Errorf("%s\n want %s\n got  %v", test.yaml, test.want, problems)
		}
		if (m == nil) != (severity == condition.Error) {
			t.Errorf("%s\n configuration %v with %v", test.yaml, m, problems)
		}
	}
}

func TestValues(t *testing.T) {
	m, problems := meshfile.Parse("mesh.yaml", []byte(`
rootNamespace: mesh
defaultServiceExportTo: [.]
defaultVirtualServiceExportTo: ["*"]
defaultDestinationRuleExportTo: [shop]
outboundTrafficPolicy: {mode: REGISTRY_ONLY}
protocolDetectionTimeout: 1s
connectTimeout: 2s
dnsRefreshRate: 3s
h2UpgradePolicy: UPGRADE
accessLogFile: /dev/stdout
accessLogEncoding: JSON
proxyListenPort: 1
proxyInboundListenPort: 2
tlsDefaults: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-256]}
trustDomain: example.com
trustDomainAliases: [cluster.local]
`))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := mesh.Default()
	want.RootNamespace, want.AllowAnyOutbound, want.UpgradeHTTP2 = "mesh", false, true
	want.ServiceExportTo, want.VirtualServiceExportTo, want.DestinationRuleExportTo = []string{"."}, []string{"*"},
		[]string{"shop"}
	want.ProtocolDetectionTimeout, want.ConnectTimeout, want.DNSRefreshRate = time.Second, 2*time.Second,
		3*time.Second
	want.TLSDefaults = &meshapi.MeshConfig_TLSConfig{
		MinProtocolVersion: meshapi.MeshConfig_TLSConfig_TLSV1_3, EcdhCurves: []string{"P-256"}}
	want.TrustDomain, want.TrustDomainAliases = "example.com", []string{"cluster.local"}
	want.AccessLog, want.OutboundPort, want.InboundPort = mesh.AccessLog{File: "/dev/stdout",
		JSON: true, Istio: true}, 1, 2
	want.LogFormat.JSON = true
	if !m.Equal(want) {
		t.Errorf("got %+v, want %+v", m, want)
	}
	if m.Equal(mesh.Default()) {
		t.Error("equals the defaults")
	}
}

func TestRead_ReportsMissingFile(t *testing.T) {
	m, text, problems := meshfile.Read(filepath.Join(t.TempDir(), "mesh.yaml"))
	if m != nil || text != nil || len(problems) != 1 || !strings.Contains(problems[0].String(),
		"mesh_config_file") {
		t.Errorf("%v, %v", m, problems)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("connectTimeout: 3s\ndefaultConfig: {gatewayTopology: {numTrustedProxies: 2}}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		m, problems := meshfile.Parse("mesh.yaml", content)
		if m == nil && len(problems) == 0 {
			t.Error("neither a configuration nor a reason")
		}
	})
}
