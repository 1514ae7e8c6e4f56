package xds

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/resource"
)

// registrations records the calls of Options.RegisterWorkload and of the methods of Registration.
type registrations struct {
	events chan string
	denied chan error
}

func (r *registrations) register(_ context.Context, _ Peer, node *corev3.Node) (
	Registration, error) {
	switch node.GetId() {
	case "unregistered":
		return nil, nil
	case "refused":
		return nil, status.Error(codes.PermissionDenied, "not you")
	}
	r.events <- "register"
	return r, nil
}

func (r *registrations) ReportHealth(healthy bool, problem string) {
	r.events <- fmt.Sprint(healthy, " ", problem)
}

func (r *registrations) Refused() <-chan error { return r.denied }

func (r *registrations) End() { r.events <- "end" }

func (r *registrations) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-r.events:
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Fatalf("no %q", want)
	}
}

func TestRegistration_LastsAsLongAsTheStream(t *testing.T) {
	feed := resource.NewFeed()
	feed.Publish(resource.Change{})
	r := &registrations{make(chan string, 10), make(chan error, 1)}
	socket := socketPath(t)
	serve(t, socket, Options{Source: oneFeed{feed}, RegisterWorkload: r.register})
	connection := dial(t, socket)
	open := func(id string) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
		t.Helper()
		stream := deltaStream(t, connection)
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds,
			Node: &corev3.Node{Id: id}}); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	if _, err := open("refused").Recv(); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	if _, err := open("unregistered").Recv(); err != nil {
		t.Error(err)
	}
	secrets, err := secretv3.NewSecretDiscoveryServiceClient(connection).DeltaSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := secrets.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.SecretType,
		Node: aNode, ResourceNamesSubscribe: []string{"a"}}); err != nil {
		t.Fatal(err)
	}

	delta := open("test")
	r.expect(t, "register")
	for _, problem := range []*statusv3.Status{{Message: "exit status 1"}, nil} {
		if err := delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.HealthType,
			ErrorDetail: problem}); err != nil {
			t.Fatal(err)
		}
	}
	r.expect(t, "false exit status 1")
	r.expect(t, "true ")
	r.denied <- errors.New("no WorkloadGroup")
	for err = error(nil); err == nil; {
		_, err = delta.Recv()
	}
	if status.Code(err) != codes.FailedPrecondition {
		t.Error(err)
	}
	r.expect(t, "end")

	state, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := state.Send(&discoveryv3.DiscoveryRequest{TypeUrl: resource.HealthType,
		Node: aNode}); err != nil {
		t.Fatal(err)
	}
	r.expect(t, "register")
	r.expect(t, "true ")
	if err := connection.Close(); err != nil {
		t.Fatal(err)
	}
	r.expect(t, "end")
}
