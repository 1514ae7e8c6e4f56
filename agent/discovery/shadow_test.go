package discovery_test

import (
	stdcmp "cmp"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery"
)

const edgeGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %s}
spec:
  servers:
  - {port: {number: 8080, name: http, protocol: HTTP}, hosts: ["*"]%s}
---
`

const edgeRoutes = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s}
spec: {hosts: [%s], gateways: [%s], http: %s}
`

// TestCheck_WarnsOfHiddenVirtualServices checks two files with VirtualServices for the same host.
// Those in a.yaml are older, so the routes of the other file that they make unreachable get a
// warning.
func TestCheck_WarnsOfHiddenVirtualServices(t *testing.T) {
	const answer = "directResponse: {status: 200}"
	const all = "[{" + answer + "}]"
	for name, c := range map[string]struct{ older, newer, hosts, tls, want string }{
		"everything twice": {older: all, newer: all, want: "spec.http[0]"},
		"everything, written in two ways": {older: "[{match: [{uri: {prefix: /}}], " + answer +
			"}]",
			newer: "[{match: [{uri: {regex: .*}}], " + answer + "}]", want: "spec.http[0]"},
		"a prefix of it": {older: "[{match: [{uri: {prefix: /a}}], " + answer + "}]",
			newer: "[{match: [{uri: {prefix: /b}}, {uri: {exact: /a/c}}], " + answer + "}]",
			want:  "spec.http[0].match[1]"},
		"all of several": {
			older: "[{match: [{uri: {prefix: /a}}], " + answer + "}, {" + answer + "}]",
			newer: "[{match: [{uri: {prefix: /ab}}], " + answer + "}, {" + answer + "}]",
			want:  "spec.http"},
		"its own path": {older: all, newer: "[{match: [{uri: {prefix: /b}}], " + answer + "}]"},
		"a header more": {
			older: "[{match: [{uri: {prefix: /a}, headers: {h: {exact: v}}}], " + answer + "}]",
			newer: "[{match: [{uri: {prefix: /a}}], " + answer + "}]"},
		"a header less": {older: "[{match: [{uri: {prefix: /a}}], " + answer + "}]",
			newer: "[{match: [{uri: {prefix: /ab}, headers: {h: {exact: v}}}], " + answer + "}]",
			want:  "spec.http[0]"},
		"a pattern, for all other hosts": {older: all, newer: all, hosts: "\"*.test\""},
		"a redirect": {older: "[{match: [{uri: {prefix: /a}}], " + answer + "}]", newer: all,
			tls: ", tls: {httpsRedirect: true}", want: "spec.servers[0].hosts: requests to * on " +
				"port 8080 are redirected to https by Gateway default/a at $DIR/a.yaml:1; " +
				"name each host in one server of a port only"},
	} {
		directory := t.TempDir()
		for i, file := range []string{"a", "b"} {
			text := fmt.Sprintf(edgeGateway, file, []string{c.tls, ""}[i]) +
				fmt.Sprintf(edgeRoutes, file, []string{"x.test", stdcmp.Or(c.hosts, "x.test")}[i],
					file,
					[]string{c.older, c.newer}[i])
			write(t, filepath.Join(directory, file+".yaml"), text)
		}
		problems, err := discovery.Check([]string{directory},
			discovery.CheckOptions{NodeType: "router"})
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for _, p := range problems {
			said := string(p.Severity) + " " + p.String()
			got = append(got, strings.ReplaceAll(said, directory, "$DIR"))
		}
		switch {
		case c.want == "":
		case c.tls != "":
			want = []string{"warning $DIR/b.yaml:1: Gateway default/b: " + c.want}
		default:
			want = []string{"warning $DIR/b.yaml:8: VirtualService default/b: " + c.want +
				": is never reached for host x.test: VirtualService default/a at $DIR/a.yaml:8 " +
				"is older " +
				"and counts; put the routes into one VirtualService, or let each have hosts of " +
				"its own"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}
