package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
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

// relayResult has the times of a client on each path, in this order: directly, directly again as a
// control, through outriderd, through pilot-agent.
type relayResult struct {
	Paths []*relayPath `json:"paths"`
}

type relayPath struct {
	Name       string `json:"name"`
	target     string
	connection *grpc.ClientConn
	stream     discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	nonce      string // of the last response

	First []time.Duration `json:"first_ns"` // from connecting to the receipt of 2 MB
	Push  []time.Duration `json:"-"`        // from sending a small response to its receipt
	Added []time.Duration `json:"-"`        // Push minus that of the direct client

	MedianFirst time.Duration `json:"first_median_ns"`
	MedianPush  time.Duration `json:"push_median_ns"`
	MedianAdded time.Duration `json:"push_added_median_ns"`
}

// Sizes and targets of the relay.
const (
	firstResources = 1000
	firstBytes     = 2000 // size of each of the firstResources
	pushBytes      = 300
	pushesPerRun   = 25
	pushPause      = 10 * time.Millisecond // lets all processes become idle before a push
	firstCost      = 10 * time.Millisecond
	pushCost       = 50 * time.Microsecond
)

// relays measures agents without an Envoy: a client takes Envoy's place. The server is a separate
// process.
func relays(t *stage, s settings) any {
	up := &discoveryServer{address: fmt.Sprint("127.0.0.1:", parts.FreePort(t))}
	up.process = exec.Command("/proc/self/exe", pusherCommand, up.address)
	up.start(t)
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
	result := &relayResult{Paths: []*relayPath{{Name: "direct", target: up.address},
		{Name: "direct again", target: up.address},
		{Name: "outriderd", target: "unix:" + socket},
		{Name: "pilot-agent", target: "unix:" + filepath.Join(istio.folder, "proxy", "XDS")}}}
	for run := range s.runs + 1 {
		if run == 1 { // discard the first run, in which connections wait until the agents listen
			for _, p := range result.Paths {
				p.First, p.Push, p.Added = nil, nil, nil
			}
		}
		measureRelays(t, result.Paths, run)
	}
	for _, p := range result.Paths {
		p.MedianFirst, p.MedianPush, p.MedianAdded = median(p.First), median(p.Push), median(p.Added)
		fmt.Printf("%s, medians: first 2 MB %s, push %v, added to it %v\n", p.Name,
			millis(p.MedianFirst), p.MedianPush, p.MedianAdded)
	}
	direct, ours := result.Paths[0], result.Paths[2]
	t.target(s, ours.MedianFirst-direct.MedianFirst <= firstCost, "the first 2 MB")
	t.target(s, ours.MedianAdded <= pushCost, "a push")
	return result
}

// measureRelays connects a client on each path and makes the server push to one at a time, in
// changing order.
func measureRelays(t *stage, paths []*relayPath, run int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range paths {
		paths[(run+i)%len(paths)].connect(ctx, t)
	}
	for push := range pushesPerRun {
		for i := range paths {
			p := paths[(push+i)%len(paths)]
			received := p.receive(t, 1)
			sent, _ := strconv.ParseInt(p.nonce, 10, 64)
			p.Push = append(p.Push, received.Sub(time.Unix(0, sent)))
		}
		for _, p := range paths {
			last := len(p.Push) - 1
			p.Added = append(p.Added, p.Push[last]-paths[0].Push[last])
		}
	}
	for _, p := range paths {
		_ = p.connection.Close()
	}
}

// connect opens a stream and measures the time until the first response, with all resources.
func (p *relayPath) connect(ctx context.Context, t *stage) {
	t.Helper()
	var err error
	if p.connection, err = grpc.NewClient(p.target, grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(64<<20), grpc.WaitForReady(true)),
		grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if p.stream, err = discoveryv3.NewAggregatedDiscoveryServiceClient(p.connection).
		DeltaAggregatedResources(ctx); err != nil {
		t.Fatal(err)
	}
	p.nonce = ""
	p.First = append(p.First, p.receive(t, firstResources).Sub(begun))
}

// receive acknowledges the last response, which makes the server send the next, and returns the
// time of its receipt.
func (p *relayPath) receive(t *stage, resources int) time.Time {
	t.Helper()
	if err := p.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.ClusterType,
		ResponseNonce: p.nonce, Node: &corev3.Node{
			Id: "sidecar~127.0.0.1~vm.default~default.svc.cluster.local"}}); err != nil {
		t.Fatal(err)
	}
	response, err := p.stream.Recv()
	received := time.Now()
	if err != nil || len(response.Resources) != resources {
		t.Fatalf("%s: %d resources, %v", p.Name, len(response.GetResources()), err)
	}
	p.nonce = response.Nonce
	return received
}

// pusherCommand makes this program serve pushes on an address.
const pusherCommand = "serve-pushes"

// pusher is an xDS server that responds to the first request for clusters with a large set, and to
// later ones with a single cluster, after a pause. The nonce is the time of sending in nanoseconds.
type pusher struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

func servePushes(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, pusher{})
	return server.Serve(listener)
}

// DeltaAggregatedResources implements discoveryv3.AggregatedDiscoveryServiceServer.
func (pusher) DeltaAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	set, one := clusters(firstResources, firstBytes), clusters(1, pushBytes)
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has disconnected
		}
		if request.TypeUrl != xds.ClusterType { // the agents' own requests
			continue
		}
		response := set
		if request.ResponseNonce != "" {
			response = one
			time.Sleep(pushPause)
		}
		response.Nonce = strconv.FormatInt(time.Now().UnixNano(), 10)
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

func clusters(number, bytes int) *discoveryv3.DeltaDiscoveryResponse {
	response := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.ClusterType}
	for i := range number {
		response.Resources = append(response.Resources, &discoveryv3.Resource{
			Name:     fmt.Sprintf("outbound|80||service-%d.test", i),
			Resource: &anypb.Any{TypeUrl: xds.ClusterType, Value: make([]byte, bytes)}})
	}
	return response
}
