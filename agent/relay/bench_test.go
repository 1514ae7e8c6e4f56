package relay

import (
	"context"
	"fmt"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// benchmark measures responses from a server to a client, directly and through the relay. The
// difference is the cost of the relay.
func benchmark(b *testing.B, resources, bytes int) {
	b.Helper()
	message := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: "1"}
	for i := range resources {
		message.Resources = append(message.Resources, &discoveryv3.Resource{
			Name: fmt.Sprint("outbound|80||service-", i, ".test"),
			Resource: &anypb.Any{TypeUrl: clusterType,
				Value: make([]byte, bytes)}})
	}
	text, err := proto.Marshal(message)
	if err != nil {
		b.Fatal(err)
	}
	request := &discoveryv3.DeltaDiscoveryRequest{Node: testNode(b), TypeUrl: clusterType}
	for _, direct := range []bool{true, false} {
		b.Run(map[bool]string{true: "direct", false: "relay"}[direct], func(b *testing.B) {
			up := startUpstream(b, "127.0.0.1:0")
			var client *testStream
			if direct {
				client = connectTo(b, up.address)
			} else {
				client = startRelay(b, serverAt(up.address), b.TempDir()+"/cache").
					connect(b, true, false)
			}
			client.send(request)
			above := up.accept()
			above.next()
			for b.Loop() {
				if err := above.stream.SendMsg(&text); err != nil {
					b.Fatal(err)
				}
				client.next()
			}
		})
	}
}

// connectTo opens an incremental xDS stream to a server.
func connectTo(b *testing.B, address string) *testStream {
	b.Helper()
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseBytes)))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(func() { cancel(); _ = connection.Close() })
	stream, err := connection.NewStream(ctx,
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/"+serviceName+"/"+deltaMethod, grpc.ForceCodecV2(codec{}))
	if err != nil {
		b.Fatal(err)
	}
	return newTestStream(b, stream, false)
}

func BenchmarkPush(b *testing.B) { benchmark(b, 1, 300) }

func BenchmarkFirstSet(b *testing.B) { benchmark(b, 1000, 2000) }
