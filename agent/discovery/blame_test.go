package discovery_test

import (
	"strings"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// TestRefusal_BlamesVirtualHostThatEnvoyQuotes refuses a route configuration of several objects.
// The problem names the objects of the virtual host that Envoy's message quotes.
func TestRefusal_BlamesVirtualHostThatEnvoyQuotes(t *testing.T) {
	service := func(name string) string {
		return "ServiceEntry shop/" + name + ": {hosts: [" + name + ".test], addresses: [10.3.0." +
			name[1:] + "], resolution: STATIC, " +
			"ports: [{number: 80, name: p, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}"
	}
	server, _ := start(t, discovery.Options{Files: []string{meshOf(t, service("s1"), service("s2"),
		service("s3"),
		"VirtualService shop/plain: {hosts: [s1.test], http: [{route: [{destination: {host: "+
			"s1.test}}]}]}",
		"VirtualService shop/regex: {hosts: [s2.test], http: [{match: [{uri: {regex: "+
			"'/v[0-9]+/(a|b)'}}], route: [{destination: {host: s1.test}}]}]}",
		"VirtualService shop/cors: {hosts: [s3.test], http: [{corsPolicy: {allowOrigins: "+
			"[{regex: 'https://.*'}]}, route: [{destination: {host: s1.test, subset: v1}}]}]}")}})
	feedOf(t, server, "sidecar")
	for _, test := range []struct{ reason, object string }{
		{"Duplicate entry of domain 10.3.0.2 in route 80", "VirtualService shop/regex"},
		{"Only unique values for domains are permitted. Duplicate entry of domain s1.test in " +
			"route 80", "VirtualService shop/plain"},
		{"RE2 program size of 255 > max program size of 100 set for the error level threshold: " +
			"/v[0-9]+/(a|b)", "VirtualService shop/regex"},
		{"no argument for repetition operator in 'https://.*'", "VirtualService shop/cors"},
		{"route: unknown cluster 'outbound|80|v1|s1.test'", "VirtualService shop/cors"},
	} {
		refuse(t, feedOf(t, server, "sidecar"), resource.RouteType, "80", test.reason)
		eventually(t, test.reason, func() (bool, string) {
			got := ""
			for _, p := range server.Problems() {
				if strings.Contains(p.Message, test.reason) {
					got = p.Object
				}
			}
			return got == test.object, got
		})
	}
}
