package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"outrider.org/outrider/agent/identity/pkitest"
	xds "outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// relayResult has the times of a client that is connected directly, through outriderd and through
// pilot-agent, in this order.
type relayResult struct {
	Paths []relayPath `json:"paths"`
}

type relayPath struct {
	Name   string `json:"name"`
	target string

	First []time.Duration `json:"first_ns"` // from the request for 2 MB to the response
	Push  []time.Duration `json:"-"`        // from sending a small response to its receipt

	MedianFirst time.Duration `json:"first_median_ns"`
	MedianPush  time.Duration `json:"push_median_ns"`
}

// Sizes and targets of the relay.
const (
	firstResources = 1000
	firstBytes     = 2000 // of each
	pushBytes      = 300
	pushesPerRun   = 25
	firstCost      = 10 * time.Millisecond
	pushCost       = 50 * time.Microsecond
)

// relays measures agents without Envoy, whose place a client takes.
func relays(t *stage, s settings) any {
	up := startPusher(t)
	istio := istioAgent(t, up.address)
	istio.environment = []string{"DISABLE_ENVOY=true"}
	istio.issue(t, pkitest.NewAuthority(t, "root", nil))
	istio.start()
	t.Cleanup(istio.stop)
	socket := filepath.Join(parts.ShortDir(t), "xds.sock")
	rig.New(t, rig.Options{TOML: fmt.Sprintf(`[envoy]
enabled = false
[discovery]
address = %q
auth = "none"
[xds]
socket = %q
`, up.address, socket)}).Start()
	result := &relayResult{Paths: []relayPath{{Name: "direct", target: up.address},
		{Name: "outriderd", target: "unix:" + socket},
		{Name: "pilot-agent", target: "unix:" + filepath.Join(istio.folder, "proxy", "XDS")}}}
	for run := range s.runs + 1 {
		for i := range result.Paths {
			p := &result.Paths[i]
			first, pushes := up.measure(t, p.target)
			if run > 0 { // the first one waits for the agents
				p.First, p.Push = append(p.First, first), append(p.Push, pushes...)
			}
		}
	}
	for i := range result.Paths {
		p := &result.Paths[i]
		p.MedianFirst, p.MedianPush = median(p.First), median(p.Push)
		fmt.Printf("%s, medians: first 2 MB %s, push %.3f ms\n", p.Name, millis(p.MedianFirst),
			float64(p.MedianPush)/float64(time.Millisecond))
	}
	direct, ours := result.Paths[0], result.Paths[1]
	t.target(s, ours.MedianFirst-direct.MedianFirst <= firstCost, "the first 2 MB")
	t.target(s, ours.MedianPush-direct.MedianPush <= pushCost, "a push")
	return result
}

// pusher is an xDS server that sends what measure makes it send.
type pusher struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	address string
	streams chan discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	acked   chan struct{}
}

func startPusher(t *stage) *pusher {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pusher{address: listener.Addr().String(), acked: make(chan struct{}, 1),
		streams: make(chan discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer, 1)}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, p)
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
	return p
}

// DeltaAggregatedResources passes the stream of a client to measure, and reports its ACKs.
func (p *pusher) DeltaAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	for {
		request, err := stream.Recv()
		switch {
		case err != nil:
			return nil //nolint:nilerr // the client has gone
		case request.TypeUrl != xds.ClusterType: // requests of the agents' own
		case request.ResponseNonce == "":
			p.streams <- stream
		default:
			p.acked <- struct{}{}
		}
	}
}

func clusters(number, bytes int) *discoveryv3.DeltaDiscoveryResponse {
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: "1"}
	for i := range number {
		response.Resources = append(response.Resources, &discoveryv3.Resource{
			Name:     fmt.Sprintf("outbound|80||service-%d.test", i),
			Resource: &anypb.Any{TypeUrl: xds.ClusterType, Value: make([]byte, bytes)}})
	}
	return response
}

// measure connects a client, which acknowledges a first set of clusters and pushes of one.
func (p *pusher) measure(t *stage, target string) (first time.Duration, pushes []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	connection, err := grpc.NewClient(target, grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(64<<20), grpc.WaitForReady(true)),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	begun := time.Now()
	client, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	send := func(nonce string) {
		if err := client.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.ClusterType,
			ResponseNonce: nonce, Node: &corev3.Node{
				Id: "sidecar~127.0.0.1~vm.default~default.svc.cluster.local"}}); err != nil {
			t.Fatal(err)
		}
	}
	send("")
	receive := func(upstream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer,
		response *discoveryv3.DeltaDiscoveryResponse) (sent, received time.Time) {
		sent = time.Now()
		if err := upstream.Send(response); err != nil {
			t.Fatal(err)
		}
		got, err := client.Recv()
		if received = time.Now(); err != nil || len(got.Resources) != len(response.Resources) {
			t.Fatalf("%s: %d resources, %v", target, len(got.GetResources()), err)
		}
		send(got.Nonce)
		<-p.acked
		return sent, received
	}
	set, one := clusters(firstResources, firstBytes), clusters(1, pushBytes)
	upstream := <-p.streams
	_, received := receive(upstream, set)
	first = received.Sub(begun)
	for range pushesPerRun {
		sent, received := receive(upstream, one)
		pushes = append(pushes, received.Sub(sent))
	}
	return first, pushes
}
