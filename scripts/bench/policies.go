package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/scripts/adsload"
	"outrider.org/outrider/scripts/parts"
)

// policiesResult is the result of one server with policies, each of which selects one workload.
type policiesResult struct {
	Server   string `json:"server"`
	Policies int    `json:"policies"`
	Clients  int    `json:"clients"` // each is selected by one policy

	// Policy is the median time from a change of one policy's file until the selected client has
	// it, without debounce times.
	Policy          time.Duration `json:"policy_change_ns"`
	PolicyProcessor time.Duration `json:"policy_change_processor_ns"`
	// Route is the time from a change of a route of all clients until the last client has it.
	Route          time.Duration `json:"route_change_ns"`
	RouteProcessor time.Duration `json:"route_change_processor_ns"`
	Peak           int           `json:"peak_rss_bytes"`
}

const (
	policyCount = 1000
	// changedPolicy is the number of the changed policy and of the client that it selects.
	changedPolicy = 7
	// mostPolicyShare is the maximum processor time of a policy change, relative to that of a route
	// change.
	mostPolicyShare = 2
)

// comparePolicies measures a change of a policy and a change of a route, in outrider-discoveryd and
// in istiod.
func comparePolicies(t *stage, s settings) any {
	var results []*policiesResult
	for _, name := range []string{"outrider", "istiod"} {
		r := policiesOnce(t, s, name)
		results = append(results, r)
		fmt.Printf("%-8s %d policies, %d clients: policy %s (%s), route %s (%s), peak %d MB\n",
			name, r.Policies, r.Clients, millis(r.Policy), millis(r.PolicyProcessor),
			millis(r.Route), millis(r.RouteProcessor), r.Peak>>20)
		if name == "outrider" {
			t.target(s, r.Policy <= mostChange, "a policy is at its client after %s",
				millis(r.Policy))
			t.target(s, r.PolicyProcessor <= mostPolicyShare*r.RouteProcessor,
				"a policy costs %s of a processor, a route %s", millis(r.PolicyProcessor),
				millis(r.RouteProcessor))
		}
	}
	return results
}

func policiesOnce(t *stage, s settings, name string) *policiesResult {
	folder := parts.ShortDir(t)
	replaceFile(t, folder, "sidecar.yaml", sidecarText())
	writeService(t, folder, 0, "10.200.0.4")
	replaceFile(t, folder, "route.yaml", routeText(""))
	for i := range policyCount {
		replaceFile(t, folder, fmt.Sprintf("policy-%d.yaml", i), policyText(i, "first"))
	}
	server := startServer(t, name, folder)
	defer server.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	load, err := adsload.Start(ctx, adsload.Options{
		Targets: []string{server.address}, Clients: s.clients,
		Delta: true, Node: workloadNode})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := load.WaitInitialResources(ctx); err != nil {
		t.Fatal(err)
	}
	time.Sleep(afterConnect)
	r := &policiesResult{Server: name, Policies: policyCount, Clients: s.clients}
	r.Policy, r.PolicyProcessor = changes(t, s, server, func(version string) *adsload.ContentWatch {
		mark := load.WatchContentAtClient(changedPolicy, adsload.ListenerType, []byte(version))
		replaceFile(t, folder, fmt.Sprintf("policy-%d.yaml", changedPolicy),
			policyText(changedPolicy, version))
		return mark
	})
	r.Route, r.RouteProcessor = changes(t, s, server, func(version string) *adsload.ContentWatch {
		mark := load.WatchContent(adsload.RouteType, []byte(version))
		replaceFile(t, folder, "route.yaml", routeText(version))
		return mark
	})
	r.Peak = server.peak(t)
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	return r
}

// changes makes several changes in sequence. It returns the median time until the last client had a
// change, and the server's processor time per change.
func changes(t *stage, s settings, server *discoveryServer,
	change func(version string) *adsload.ContentWatch) (took, processor time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var all []time.Duration
	before := server.processor(t)
	for i := range s.changes {
		begun := time.Now()
		at, err := change(fmt.Sprintf("version-%d-", i)).Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var last time.Duration
		for _, one := range at {
			last = max(last, one.Sub(begun))
		}
		all = append(all, last-server.debounce)
	}
	return median(all), (server.processor(t) - before) / time.Duration(s.changes)
}

// workloadNode is the node of a sidecar that policy i selects.
func workloadNode(i int) *corev3.Node {
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "ns", "CLUSTER_ID": "Kubernetes",
		"INTERCEPTION_MODE": "NONE", "LABELS": map[string]any{"workload": fmt.Sprint("w-", i)}})
	if err != nil {
		panic(err) // cannot happen: a Struct can hold all these values
	}
	return &corev3.Node{Id: fmt.Sprintf("sidecar~10.255.0.1~x%d.ns~ns.svc.cluster.local", i),
		Cluster: "adsload", Metadata: metadata}
}

// sidecarText is a Sidecar of ten listeners.
func sidecarText() string {
	var text bytes.Buffer
	text.WriteString("apiVersion: networking.istio.io/v1\nkind: Sidecar\n" +
		"metadata: {name: default, namespace: ns}\nspec:\n  ingress:\n")
	for p := range 10 {
		fmt.Fprintf(&text, "  - {port: {number: %d, name: http, protocol: HTTP}, "+
			"bind: 127.0.0.1, defaultEndpoint: \"127.0.0.1:%d\"}\n", 8000+p, 9000+p)
	}
	text.WriteString("  egress: [{hosts: [\"./*\"]}]\n")
	return text.String()
}

// policyText is a policy of ten rules for workload i.
func policyText(i int, version string) string {
	var text bytes.Buffer
	fmt.Fprintf(&text, "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n"+
		"metadata: {name: policy-%d, namespace: ns}\nspec:\n"+
		"  selector: {matchLabels: {workload: w-%d}}\n  rules:\n", i, i)
	for r := range 10 {
		fmt.Fprintf(&text, "  - from: [{source: {principals: [cluster.local/ns/ns-%d/sa/client]}}]\n"+
			"    to: [{operation: {methods: [GET, POST], paths: [/%s/rule-%d/*]}}]\n", r, version, r)
	}
	return text.String()
}

// routeText is a VirtualService for the host of service 0, which is in the configuration of all
// workloads.
func routeText(version string) string {
	return "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: route, " +
		"namespace: ns}\nspec: {hosts: [svc-0.example.com], http: [{headers: {request: {set: " +
		"{x-version: \"" + version + "\"}}}, route: [{destination: {host: svc-0.example.com}}]}]}\n"
}
