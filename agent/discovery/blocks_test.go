package discovery_test

import (
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestAddressesAndBlocks declares services with addresses and with CIDR blocks on the same port. An
// address has a listener of its own; the listener of the port has filter chains that match the
// blocks.
func TestAddressesAndBlocks(t *testing.T) {
	server, _ := start(t, discovery.Options{Files: []string{meshOf(t,
		"ServiceEntry shop/x: {hosts: [x.test], addresses: [10.0.0.1, 10.5.0.0/16, 10.0.0.1], "+
			"resolution: STATIC, ports: [{number: 90, name: p, protocol: TCP}], endpoints: "+
			"[{address: 10.0.0.9}]}",
		"ServiceEntry shop/other: {hosts: [y.test], addresses: [10.6.0.0/16], resolution: "+
			"STATIC, ports: [{number: 90, name: p, protocol: TCP}], endpoints: [{address: "+
			"10.0.0.9}]}")}})
	feed := feedOf(t, server, "REDIRECT")
	snapshot, _ := feed.Current()
	for name, want := range map[string][]string{
		"10.0.0.1_90": {"outbound|90||x.test"},
		"0.0.0.0_90": {"outbound|90||x.test", "outbound|90||y.test",
			`address_prefix:"10.5.0.0"prefix_len:{value:16}`,
			`address_prefix:"10.6.0.0"prefix_len:{value:16}`},
	} {
		contains(t, name, readableResource(t, snapshot.Get(resource.Key{Type: resource.ListenerType,
			Name: name})), want...)
	}
	if problems := server.Problems(); len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}
