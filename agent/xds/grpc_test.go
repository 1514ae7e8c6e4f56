package xds

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/resource"
)

func dial(t testing.TB, socket string, more ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+socket, append(more,
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func deltaStream(t testing.TB,
	connection *grpc.ClientConn) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

var aNode = &corev3.Node{Id: "test"}

// noFeed is a Source that returns an error for every node.
type noFeed struct{ err error }

func (s noFeed) Feed(*corev3.Node) (*resource.Feed, error) { return nil, s.err }

func TestStreams_RefuseInvalidRequests(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	long := strings.Repeat("x", maxNameBytes+1)
	var many []string
	for i := range 200 {
		many = append(many, fmt.Sprintf("%d%s", i, strings.Repeat("y", 100)))
	}
	for _, test := range []struct {
		name    string
		options Options
		request *discoveryv3.DeltaDiscoveryRequest
		code    codes.Code
		says    string
	}{
		{"no node", Options{}, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds},
			codes.InvalidArgument, "node"},
		{"no type", Options{}, &discoveryv3.DeltaDiscoveryRequest{Node: aNode},
			codes.InvalidArgument, "type_url"},
		{"long name", Options{}, &discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: eds,
			ResourceNamesSubscribe: []string{long}}, codes.InvalidArgument, "longer than"},
		{"long version", Options{}, &discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: eds,
			InitialResourceVersions: map[string]string{"a": long}}, codes.InvalidArgument,
			"longer than"},
		{"many names", Options{MaxSubscriptionBytes: 1000},
			&discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: eds,
				ResourceNamesSubscribe: many}, codes.ResourceExhausted, "1000 bytes"},
		{"large request", Options{MaxMessageBytes: 1000},
			&discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: eds,
				ResourceNamesSubscribe: many}, codes.ResourceExhausted, "larger than max"},
		{"locators", Options{}, &discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: eds,
			ResourceLocatorsSubscribe: []*discoveryv3.ResourceLocator{{Name: "xdstp://a"}}},
			codes.Unimplemented, "locators"},
		{"unknown node", Options{Source: noFeed{errors.New("no such workload")}},
			&discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: cds}, codes.FailedPrecondition,
			"no such workload"},
		{"refused node", Options{Source: noFeed{status.Error(codes.PermissionDenied, "not you")}},
			&discoveryv3.DeltaDiscoveryRequest{Node: aNode, TypeUrl: cds}, codes.PermissionDenied,
			"not you"},
		{"silence", Options{FirstRequestTimeout: 10 * time.Millisecond}, nil,
			codes.DeadlineExceeded, "no request within"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.options.Source == nil {
				test.options.Source = oneFeed{feed}
			}
			socket := socketPath(t)
			serve(t, socket, test.options)
			stream := deltaStream(t, dial(t, socket))
			if test.request != nil {
				if err := stream.Send(test.request); err != nil {
					t.Fatal(err)
				}
			}
			_, err := stream.Recv()
			if status.Code(err) != test.code || !strings.Contains(status.Convert(err).Message(),
				test.says) {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

func TestSession_AnswersUnknownTypes(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	socket := socketPath(t)
	serve(t, socket, Options{Source: oneFeed{feed}, ControlPlane: "outrider"})
	stream := deltaStream(t, dial(t, socket))
	for _, test := range []struct {
		request *discoveryv3.DeltaDiscoveryRequest
		removed []string
	}{
		{&discoveryv3.DeltaDiscoveryRequest{Node: aNode,
			TypeUrl: "type.googleapis.com/no.such.Type"}, nil},
		{&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "no-type-at-all",
			ResourceNamesSubscribe: []string{"a"}}, []string{"a"}},
		{&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.VirtualHostType,
			ResourceNamesSubscribe: []string{"routes/host"}}, []string{"routes/host"}},
	} {
		if err := stream.Send(test.request); err != nil {
			t.Fatal(err)
		}
		got, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got.TypeUrl != test.request.TypeUrl || got.Nonce == "" || len(got.Resources) != 0 ||
			!slices.Equal(got.RemovedResources, test.removed) ||
			got.ControlPlane.GetIdentifier() != "outrider" {
			t.Errorf("answer: %v", got)
		}
	}
}

func TestSecrets_OverOwnService(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{Set: []*resource.Resource{made(resource.SecretType, "default=1"),
		cluster("a=1")}})
	socket := socketPath(t)
	serve(t, socket, Options{Source: oneFeed{feed}})
	client := secretv3.NewSecretDiscoveryServiceClient(dial(t, socket))

	state, err := client.StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := state.Send(&discoveryv3.DiscoveryRequest{Node: aNode, TypeUrl: resource.SecretType,
		ResourceNames: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	got, err := state.Recv()
	if err != nil || len(got.Resources) != 1 || string(got.Resources[0].Value) != "1" ||
		got.Resources[0].TypeUrl != resource.SecretType {
		t.Fatalf("%v, %v", got, err)
	}
	if err := state.Send(&discoveryv3.DiscoveryRequest{TypeUrl: cds}); err != nil {
		t.Fatal(err)
	}
	if _, err := state.Recv(); status.Code(err) != codes.InvalidArgument ||
		!strings.Contains(err.Error(), "serves") {
		t.Errorf("clusters over SDS: %v", err)
	}

	delta, err := client.DeltaSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: aNode,
		TypeUrl: resource.SecretType, ResourceNamesSubscribe: []string{"default"}}); err != nil {
		t.Fatal(err)
	}
	first, err := delta.Recv()
	if err != nil || len(first.Resources) != 1 || first.Resources[0].Name != "default" {
		t.Fatalf("%v, %v", first, err)
	}
	if _, err := client.FetchSecrets(t.Context(),
		&discoveryv3.DiscoveryRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("FetchSecrets: %v", err)
	}
}

func TestStatus_BeforeFirstRequest(t *testing.T) {
	socket := socketPath(t)
	server, _ := serve(t, socket, Options{Source: oneFeed{resource.NewFeed()}})
	deltaStream(t, dial(t, socket))
	eventually(t, "a stream without types", func() bool {
		all := server.Status(t.Context())
		return len(all) == 1 && all[0].Delta && all[0].Node == nil && len(all[0].Types) == 0
	})
}
