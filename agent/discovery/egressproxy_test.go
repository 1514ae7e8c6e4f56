package discovery_test

import (
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestEgressProxy_IgnoresCaseOfHost: the host of the egress proxy and of its service may differ in
// upper and lower case.
func TestEgressProxy_IgnoresCaseOfHost(t *testing.T) {
	server, _ := start(t, discovery.Options{Files: []string{meshOf(t,
		"ServiceEntry shop/x: {hosts: [x.test], resolution: STATIC, ports: [{number: 80, name: "+
			"p, protocol: HTTP}], endpoints: [{address: 10.0.0.9}]}",
		"ServiceEntry bank/other: {hosts: [y.test], resolution: STATIC, ports: [{number: 80, "+
			"name: p, protocol: HTTP}], endpoints: [{address: 10.0.0.9}]}",
		"Sidecar shop/s: {egress: [{hosts: ['./*']}], outboundTrafficPolicy: {mode: ALLOW_ANY, "+
			"egressProxy: {host: Y.Test, port: {number: 80}}}}")}})
	snapshot, _ := feedOf(t, server, "sidecar").Current()
	contains(t, "routes", readableResource(t, snapshot.Get(resource.Key{Type: resource.RouteType,
		Name: "80"})), `cluster:"outbound|80||y.test"`)
	if snapshot.Get(resource.Key{Type: resource.ClusterType, Name: "outbound|80||y.test"}) == nil {
		t.Error("the proxy has no cluster")
	}
}
