package discovery_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
)

// meshOf writes objects to a new directory, which it returns. Each object is "Kind namespace/name:
// spec", with the spec in YAML's flow style.
func meshOf(t *testing.T, objects ...string) string {
	t.Helper()
	directory := t.TempDir()
	for i, text := range objects {
		head, spec, _ := strings.Cut(text, ": ")
		kind, key, _ := strings.Cut(head, " ")
		namespace, name, _ := strings.Cut(key, "/")
		write(t, filepath.Join(directory, fmt.Sprintf("%02d.yaml", i)),
			fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, "+
				"namespace: %s}\nspec: %s\n", kind, name, namespace, spec))
	}
	return directory
}

// readableResource returns a resource as text without white space, "" if the resource does not
// exist.
func readableResource(t *testing.T, r *resource.Resource) string {
	t.Helper()
	if r == nil {
		return ""
	}
	message, err := (&anypb.Any{TypeUrl: r.Type, Value: r.EncodedMessage()}).UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(prototext.Format(message)), "")
}

// TestSees_HiddenObjectsChangeNothing: objects that a proxy cannot see, because of exportTo or its
// Sidecar, do not change the resources that result from visible objects.
func TestSees_HiddenObjectsChangeNothing(t *testing.T) {
	const (
		static = "resolution: STATIC, ports: [{number: 80, name: p, protocol: HTTP}], " +
			"endpoints: [{address: 10.0.0.1, labels: {version: v1}}]"
		version = "{hosts: [x.test], " + static + "}"
		subset  = "{host: x.test, subsets: [{name: v1, labels: {version: v1}}]}"
		answer  = "http: [{directResponse: {status: 201}}]"
	)
	route, cluster := resource.Key{Type: resource.RouteType, Name: "80"},
		resource.Key{Type: resource.ClusterType, Name: "outbound|80|v1|x.test"}
	for _, test := range []struct {
		name      string
		kind      string
		namespace string
		key       resource.Key
		want      string // part of the resource; "": the resource must not exist
		objects   []string
	}{
		{"a rule for the whole mesh, in its own namespace", "router", "istio-system", cluster,
			"outbound|80|v1|x.test", []string{
				"ServiceEntry shop/x: " + version, "DestinationRule shop/d: " + subset,
				"DestinationRule istio-system/all: {host: '*.test', trafficPolicy: " +
					"{loadBalancer: {simple: RANDOM}}}"}},
		{"a rule for the root namespace alone", "router", "istio-system", cluster, "", []string{
			"ServiceEntry shop/x: " + version, "DestinationRule shop/d: " + subset,
			"DestinationRule istio-system/all: {host: '*.test', exportTo: [.], trafficPolicy: " +
				"{loadBalancer: {simple: RANDOM}}}"}},
		{"a service of another namespace, under a wildcard", "sidecar", "shop", route,
			`domains:"*.foo.test"`, []string{"ServiceEntry shop/other: {hosts: [other.net], " +
				static + "}",
				"VirtualService shop/v: {hosts: ['*.foo.test'], " + answer + "}",
				"ServiceEntry bank/a: {hosts: [a.foo.test], exportTo: [.], " + static + "}"}},
		{"a service that the Sidecar leaves out, under a wildcard", "sidecar", "shop", route,
			`domains:"*.foo.test"`, []string{"ServiceEntry shop/other: {hosts: [other.net], " +
				static + "}",
				"VirtualService shop/v: {hosts: ['*.foo.test'], " + answer + "}",
				"ServiceEntry bank/a: {hosts: [a.foo.test], " + static + "}",
				"Sidecar shop/s: {egress: [{hosts: ['./*']}]}"}},
		{"a VirtualService of another namespace for a service's address", "sidecar", "shop", route,
			`domains:"x.test"domains:"10.3.0.1"`, []string{
				"ServiceEntry shop/x: {hosts: [x.test], addresses: [10.3.0.1], " + static + "}",
				"VirtualService bank/v: {hosts: [10.3.0.1], exportTo: [.], " + answer + "}"}},
		{"a VirtualService for connections to a service's address", "sidecar", "shop", route,
			`domains:"x.test"domains:"10.3.0.1"`, []string{
				"ServiceEntry shop/x: {hosts: [x.test], addresses: [10.3.0.1], " + static + "}",
				"VirtualService shop/v: {hosts: [10.3.0.1], tcp: [{route: " +
					"[{destination: {host: x.test}}]}]}"}},
		{"a VirtualService for a service's address", "sidecar", "shop", route,
			`domains:"10.3.0.1"routes:{match`, []string{
				"ServiceEntry shop/x: {hosts: [x.test], addresses: [10.3.0.1], " + static + "}",
				"VirtualService shop/v: {hosts: [10.3.0.1], " + answer + "}"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			server, _ := start(t, discovery.Options{Files: []string{meshOf(t, test.objects...)}})
			feed, err := server.Feed(node(test.kind, test.namespace, nil))
			if err != nil {
				t.Fatal(err)
			}
			snapshot, _ := feed.Current()
			got := readableResource(t, snapshot.Get(test.key))
			if !strings.Contains(got, test.want) || test.want == "" && got != "" {
				t.Errorf("%v is %s; it should have %q", test.key, got, test.want)
			}
		})
	}
}

// contains fails the test for each wanted part that a text lacks.
func contains(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, part := range want {
		if !strings.Contains(got, part) {
			t.Errorf("%s is %s; it should have %s", what, got, part)
		}
	}
}
