package discovery_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/proto"

	"outrider.org/outrider/agent/resource"
)

// rule returns a DestinationRule for a.test with a connect timeout.
func rule(timeout string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a, namespace: shop}
spec: {host: a.test, trafficPolicy: {connectionPool: {tcp: {connectTimeout: %s}}}}
`, timeout)
}

// routesTo returns a VirtualService that rewrites requests for a host to a path.
func routesTo(name, path string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: shop}
spec: {hosts: [%s.test], http: [{rewrite: {uri: %s}, route: [{destination: {host: %s.test}}]}]}
`, name, name, path, name)
}

// refuse makes a client refuse the newest version of a resource for a cause on its own host
// (Nack.LocalCause): the client uses the resource although it reports an error.
func refuse(t *testing.T, feed *resource.Feed, typeURL, name, reason string) {
	t.Helper()
	snapshot, _ := feed.Current()
	r := snapshot.Get(resource.Key{Type: typeURL, Name: name})
	if r == nil {
		t.Fatalf("no %s", name)
	}
	feed.Refuse(resource.Client{}, resource.Nack{Resource: r, Reason: reason, LocalCause: true})
}

const clusterOfA = "outbound|80||a.test"

// timeoutOf returns the connect timeout of a cluster, "" if the cluster does not exist.
func timeoutOf(t *testing.T, r *resource.Resource) string {
	t.Helper()
	if r == nil {
		return ""
	}
	var cluster clusterv3.Cluster
	if err := proto.Unmarshal(r.EncodedMessage(), &cluster); err != nil {
		t.Fatal(err)
	}
	return cluster.ConnectTimeout.AsDuration().String()
}

// newest returns the newest version of a resource for a sidecar.
func (l *runs) newest(typeURL, name string) *resource.Resource {
	l.t.Helper()
	snapshot, _ := feedOf(l.t, l.server, "sidecar").Current()
	return snapshot.Get(resource.Key{Type: typeURL, Name: name})
}

// timeout returns the connect timeout of the newest cluster of a.test, "" if the cluster does not
// exist.
func (l *runs) timeout() string {
	l.t.Helper()
	return timeoutOf(l.t, l.newest(resource.ClusterType, clusterOfA))
}

// reported waits until the problems contain the texts, in order.
func (l *runs) reported(what string, problems ...string) {
	l.t.Helper()
	eventually(l.t, what, func() (bool, string) {
		reported := l.server.Problems()
		for i, p := range reported {
			if len(reported) != len(problems) || !strings.Contains(p.String(), problems[i]) {
				return false, fmt.Sprintf("problems %v, want %q", reported, problems)
			}
		}
		return len(reported) == len(problems), fmt.Sprintf("problems %v, want %q", reported, problems)
	})
}

// persists waits until the file of refusals exists.
func (l *runs) persists() {
	l.t.Helper()
	eventually(l.t, "the file", func() (bool, string) {
		_, err := os.Stat(l.refusals)
		return err == nil, fmt.Sprint(err)
	})
}
