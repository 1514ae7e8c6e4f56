package dns

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/object"
	"outrider.org/outrider/agent/discovery/store"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// TestParseNameTable_OfDiscoveryServer checks the name tables that a fleet's discovery server
// sends. Only agents that answer DNS queries receive one. Agents for which the same names are
// visible share a table, and a changed name produces a new one.
func TestParseNameTable_OfDiscoveryServer(t *testing.T) {
	server, err := discovery.New(discovery.Options{Sources: []string{"kubernetes"},
		ServeNameTables: true})
	if err != nil {
		t.Fatal(err)
	}
	service := func(name, host, address, endpoint string) store.SourceInput {
		path := "kubernetes:" + name
		return store.SourceInput{Path: path, Objects: []*object.Object{{File: path,
			Key:        object.Key{Kind: object.ServiceEntry, Namespace: "shop", Name: name},
			APIVersion: "networking.istio.io/v1", Spec: &networking.ServiceEntry{
				Hosts: []string{host}, Addresses: []string{address},
				Resolution: networking.ServiceEntry_STATIC,
				Ports: []*networking.ServicePort{{Number: 80, Name: "http",
					Protocol: "HTTP"}},
				Endpoints: []*networking.WorkloadEntry{{Address: endpoint}}}}}}
	}
	const host = "web.shop.svc.cluster.local"
	server.AcceptUpdate(discovery.SourceUpdate{Source: "kubernetes", Complete: true,
		Inputs: []store.SourceInput{
			service("service:web", host, "10.96.0.1", "10.0.0.1"),
			service("other", "other.test", "10.96.0.2", "10.0.0.2")}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })

	table := func(name, capture string) *resource.Resource {
		t.Helper()
		metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "NAME": name,
			"LABELS": map[string]any{"app": name}, "DNS_CAPTURE": capture})
		if err != nil {
			t.Fatal(err)
		}
		feed, err := server.Feed(&corev3.Node{Metadata: metadata,
			Id: "sidecar~10.9.9.9~" + name + ".shop~shop.svc.cluster.local"})
		if err != nil {
			t.Fatal(err)
		}
		var found *resource.Resource
		parts.Eventually(t, time.Minute, "resources", func() bool {
			snapshot, _ := feed.Current()
			for _, one := range snapshot.ByType(resource.NameTableType) {
				found = one
			}
			return snapshot.Sequence > 0
		})
		return found
	}
	first := table("a", "true")
	names, err := ParseNameTable(first.EncodedMessage())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("[{other.test [10.96.0.2]  } {"+host+" [10.96.0.1] web shop}]",
		describe(names)); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if table("b", "true") != first {
		t.Error("two proxies that see the same have tables of their own")
	}
	if table("c", "false") != nil {
		t.Error("a proxy whose agent answers no queries has a table")
	}

	endpoint := func() string {
		feed, err := server.Feed(&corev3.Node{
			Id: "sidecar~10.9.9.9~d.shop~shop.svc.cluster.local"})
		if err != nil {
			t.Fatal(err)
		}
		snapshot, _ := feed.Current()
		key := resource.Key{Type: resource.EndpointType, Name: "outbound|80||other.test"}
		if found := snapshot.Get(key); found != nil {
			return string(found.EncodedMessage())
		}
		return ""
	}
	server.AcceptUpdate(discovery.SourceUpdate{Source: "kubernetes", Inputs: []store.SourceInput{
		service("other", "other.test", "10.96.0.2", "10.0.0.3")}})
	parts.Eventually(t, time.Minute, "the new endpoint", func() bool {
		return strings.Contains(endpoint(), "10.0.0.3")
	})
	if table("a", "true") != first {
		t.Error("a change of an endpoint makes another table")
	}
	server.AcceptUpdate(discovery.SourceUpdate{Source: "kubernetes", Inputs: []store.SourceInput{
		service("service:web", host, "10.96.0.3", "10.0.0.1")}})
	parts.EventuallyWithObservation(t, time.Minute, "the new address", func() (bool, string) {
		names, err := ParseNameTable(table("a", "true").EncodedMessage())
		return err == nil && describe(names) == "[{other.test [10.96.0.2]  } {"+host+
			" [10.96.0.3] web shop}]", describe(names)
	})
}

func describe(names []Name) string {
	type name struct {
		Host             string
		Addresses        string
		Short, Namespace string
	}
	all := make([]name, len(names))
	for i, n := range names {
		all[i] = name{n.Host, fmt.Sprint(n.Addresses), n.ShortName, n.Namespace}
	}
	return fmt.Sprint(all)
}
