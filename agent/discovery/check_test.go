package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/discovery"
)

func TestCheckNamesFileLineObjectAndField(t *testing.T) {
	directory := t.TempDir()
	write(t, filepath.Join(directory, "a.yaml"), fmt.Sprintf(webEntry, "web", "10.0.0.1")+"---\n"+`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata:
  name: web
  namespace: shop
spec:
  hosts:
  - web.test
  http:
  - route:
    - destination:
        host: web.test
        subset: v1
        port: {number: 80}
    timout: 3s
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: lost, namespace: shop}
spec:
  hosts: [lost.test]
  gateways: [edge]
  http:
  - route: [{destination: {host: web.test, port: {number: 80}}}]
`)
	problems, err := discovery.Check([]string{directory}, discovery.CheckOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range problems {
		got = append(got, string(p.Severity)+" "+strings.TrimPrefix(p.String(), directory+"/"))
	}
	want := []string{
		`error a.yaml:24: VirtualService shop/web: spec.http[0].timout: unknown field "timout"; did you mean timeout?`,
		`warning a.yaml:26: VirtualService shop/lost: spec.gateways[0]: there is no Gateway shop/edge; add it or correct the name`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := discovery.Check(nil, discovery.CheckOptions{Type: "waypoint"}); err == nil {
		t.Error("a type that is none was accepted")
	}
}
