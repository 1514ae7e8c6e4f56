package xds

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/resource"
)

// TestDebug checks that a stream whose first request is for debug information receives responses,
// with incremental and with state-of-the-world xDS. Options.AnswerDebugRequest may read the state
// of all streams, including this one.
func TestDebug(t *testing.T) {
	var server *Server
	socket := socketPath(t)
	server, _ = serve(t, socket, Options{Source: noFeed{}, ControlPlane: "test",
		AnswerDebugRequest: func(ctx context.Context, client Peer, typeURL string, names []string) (
			[]*resource.Resource, error) {
			if names[0] == "secret" {
				return nil, status.Error(codes.PermissionDenied, "no")
			}
			text := fmt.Sprint(len(server.Status(ctx)), client.PID > 0)
			return []*resource.Resource{resource.FromEncoded(typeURL, names[0],
				[]byte(text))}, nil
		}})
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(dial(t, socket))

	delta, err := client.DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // send two requests, and acknowledge the response to each
		if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: DebugType,
			ResourceNamesSubscribe: []string{"syncz"}}); err != nil {
			t.Fatal(err)
		}
		answer, err := delta.Recv()
		if err != nil {
			t.Fatal(err)
		}
		r := answer.Resources[0]
		if r.Name != "syncz" || string(r.Resource.Value) != "1 true" || answer.TypeUrl != DebugType ||
			answer.ControlPlane.GetIdentifier() != "test" {
			t.Errorf("%v", answer)
		}
		if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: DebugType,
			ResponseNonce: answer.Nonce}); err != nil {
			t.Fatal(err)
		}
	}
	if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds}); err != nil {
		t.Fatal(err)
	}
	if _, err := delta.Recv(); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "use another") {
		t.Error(err)
	}

	for name, code := range map[string]codes.Code{"clusters": codes.OK,
		"secret": codes.PermissionDenied} {
		stream, err := client.StreamAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: aNode, TypeUrl: DebugType + "/x",
			ResourceNames: []string{name}}); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if status.Code(err) != code {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (answer.TypeUrl != DebugType+"/x" || len(answer.Resources) != 1) {
			t.Error(answer)
		}
	}
}

// TestSecrets_ForClientsWithIdentity checks that clients without an identity receive no secrets and
// clients with an identity do. Both use the same feed, whichever connects first.
func TestSecrets_ForClientsWithIdentity(t *testing.T) {
	feed := resource.NewFeed()
	secret := resource.FromEncoded(resource.SecretType, "key", []byte("private"))
	cluster := resource.FromEncoded(resource.ClusterType, "c", nil)
	feed.Publish(resource.Change{Set: []*resource.Resource{secret, cluster}})
	socket := socketPath(t)
	_, _ = serve(t, socket, Options{Source: oneFeed{feed},
		Admit: func(client *Peer, node *corev3.Node) (*corev3.Node, error) {
			client.Identity = node.GetCluster()
			return node, nil
		},
		MayReceiveSecrets: func(client Peer) bool { return client.Identity != "" }})
	connection := dial(t, socket)
	for _, identity := range []string{"", "someone", "", "someone"} {
		stream := deltaStream(t, connection)
		for _, typeURL := range []string{resource.SecretType, resource.ClusterType} {
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL,
				Node:                   &corev3.Node{Id: "n", Cluster: identity},
				ResourceNamesSubscribe: []string{"key", "*"}}); err != nil {
				t.Fatal(err)
			}
			answer, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			want := 1
			if typeURL == resource.SecretType && identity == "" {
				want = 0
			}
			if len(answer.Resources) != want || answer.TypeUrl != typeURL {
				t.Errorf("%q: %v", identity, answer)
			}
		}
		feed.Publish(resource.Change{Set: []*resource.Resource{
			resource.FromEncoded(resource.SecretType, "key", []byte("private of "+identity))}})
	}
}

// TestSecrets_HiddenAfterRefusal: a client refuses a cluster, and may not receive secrets. The
// session then continues with the snapshot that Feed.Refuse returns, but without its secrets.
func TestSecrets_HiddenAfterRefusal(t *testing.T) {
	p := newTable(t, true)
	p.session.visible = func(s *resource.Snapshot) *resource.Snapshot {
		return s.WithoutType(resource.SecretType)
	}
	feed := p.feed
	publish := func(all ...*resource.Resource) {
		feed.Publish(resource.Change{Set: all})
		snapshot, _ := feed.Current()
		p.session.advance(p.session.visibleOf(snapshot))
	}
	publish(made(resource.SecretType, "key=private"), cluster("c=1"))
	p.ask(&request{typeURL: cds, subscribe: []string{wildcard}})
	p.sends("CDS c=1")
	p.ack(cds)
	publish(cluster("c=2"))
	p.sends("CDS c=2")
	before := p.session.snapshot.Sequence
	p.nack(cds, "bad")
	if p.session.snapshot.Sequence == before {
		t.Error("the refusal made no snapshot")
	}
	if n := len(p.session.snapshot.ByType(resource.SecretType)); n > 0 {
		t.Errorf("%d secrets", n)
	}
}
