package discovery_test

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
)

// TestIdle_ReportsServiceFieldsWithoutEffect: fields that have no effect because of other objects
// are reported.
func TestIdle_ReportsServiceFieldsWithoutEffect(t *testing.T) {
	const (
		both = "ServiceEntry shop/x: {hosts: [x.test], resolution: STATIC, ports: [{number: 80, " +
			"name: h, protocol: HTTP}, {number: 90, name: t, protocol: TCP}], endpoints: " +
			"[{address: 10.0.0.1}]}"
		tcp = "ServiceEntry shop/x: {hosts: [x.test], resolution: STATIC, ports: [{number: 90, " +
			"name: t, protocol: TCP}], endpoints: [{address: 10.0.0.1}]}"
		hash = "{consistentHash: {httpHeaderName: who}}"
	)
	for _, test := range []struct {
		name    string
		field   string // field of the expected problem; "": no problem
		objects []string
	}{
		{"a port that is not there", "spec.trafficPolicy.portLevelSettings[0].port.number",
			[]string{both,
				"DestinationRule shop/d: {host: x.test, trafficPolicy: {portLevelSettings: " +
					"[{port: {number: 91}, loadBalancer: {simple: RANDOM}}, {port: {number: 90}, " +
					"loadBalancer: {simple: RANDOM}}]}}"}},
		{"a port that some services of a pattern have", "", []string{both,
			"DestinationRule shop/d: {host: '*.test', trafficPolicy: {portLevelSettings: [{port: " +
				"{number: 91}, loadBalancer: {simple: RANDOM}}]}}"}},
		{"headers of connections", "spec.trafficPolicy.loadBalancer.consistentHash", []string{tcp,
			"DestinationRule shop/d: {host: x.test, trafficPolicy: {loadBalancer: " + hash + "}}"}},
		{"headers of connections, where there are requests too", "", []string{both,
			"DestinationRule shop/d: {host: x.test, trafficPolicy: {loadBalancer: " + hash + "}}"}},
		{"headers of a port's connections, in a subset",
			"spec.subsets[0].trafficPolicy.portLevelSettings[0].loadBalancer.consistentHash",
			[]string{both,
				"DestinationRule shop/d: {host: x.test, subsets: [{name: v1, trafficPolicy: " +
					"{portLevelSettings: [{port: {number: 90}, loadBalancer: " + hash + "}]}}]}"}},
		{"another protocol in a Sidecar", "spec.egress[0].port.protocol", []string{both,
			"Sidecar shop/s: {egress: [{port: {number: 90, protocol: HTTP, name: http}, hosts: " +
				"['*/*']}]}"}},
		{"the same protocol in a Sidecar", "", []string{both,
			"Sidecar shop/s: {egress: [{port: {number: 80, protocol: GRPC, name: grpc}, hosts: " +
				"['*/*']}]}"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, _ := start(t, discovery.Options{Files: []string{meshOf(t, test.objects...)}})
			feedOf(t, server, "sidecar")
			var reported []string
			for _, p := range server.Problems() {
				reported = append(reported, p.Field)
				if p.Severity != condition.Warning || !strings.HasSuffix(p.File, "01.yaml") {
					t.Errorf("reported of another: %v", p)
				}
			}
			if got := strings.Join(reported, " "); got != test.field {
				t.Errorf("reported %q, want %q: %v", got, test.field, server.Problems())
			}
		})
	}
}
