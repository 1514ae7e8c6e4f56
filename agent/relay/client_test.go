package relay

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	clusterType  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	endpointType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// testNode returns the node of test clients.
func testNode(t testing.TB) *corev3.Node {
	t.Helper()
	metadata, err := structpb.NewStruct(map[string]any{"NAMESPACE": "default",
		"SERVICE_ACCOUNT": "web", "CLUSTER_ID": "Kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: "sidecar~10.255.0.1~web.default~default.svc.cluster.local",
		Cluster: "test", Metadata: metadata}
}

// testStream is one end of a stream of encoded messages: the end of a client of the relay, or of an
// upstream server.
type testStream struct {
	t        testing.TB
	stream   messages
	end      func(error) // ends the stream of an upstream server with an error
	received chan []byte
	ended    chan error
}

// messages is a gRPC stream, seen from the client or from the server.
type messages interface {
	SendMsg(message any) error
	RecvMsg(message any) error
}

// newTestStream returns a testStream. It starts to receive at once, unless slow is set.
func newTestStream(t testing.TB, stream messages, slow bool) *testStream {
	s := &testStream{t: t, stream: stream, received: make(chan []byte, 10_000),
		ended: make(chan error, 1)}
	if !slow {
		go s.receive()
	}
	return s
}

func (s *testStream) receive() {
	for {
		var message []byte
		if err := s.stream.RecvMsg(&message); err != nil {
			s.ended <- err
			return
		}
		s.received <- message
	}
}

// connect opens a client's stream to the relay.
func (r *running) connect(t testing.TB, delta, slow bool) *testStream {
	t.Helper()
	connection, err := grpc.NewClient("unix:"+r.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = connection.Close() })
	method := worldMethod
	if delta {
		method = deltaMethod
	}
	stream, err := connection.NewStream(ctx,
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/"+serviceName+"/"+method, grpc.ForceCodecV2(codec{}))
	if err != nil {
		t.Fatal(err)
	}
	s := newTestStream(t, stream, slow)
	s.end = func(error) { cancel() }
	return s
}

// send sends a message and returns its encoded form.
func (s *testStream) send(message proto.Message) []byte {
	s.t.Helper()
	text, err := proto.Marshal(message)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.stream.SendMsg(&text); err != nil {
		s.t.Fatal(err)
	}
	return text
}

// next returns the next received message, encoded.
func (s *testStream) next() []byte {
	s.t.Helper()
	select {
	case message := <-s.received:
		return message
	case err := <-s.ended:
		s.t.Fatalf("the stream ended: %v", err)
	case <-time.After(10 * time.Second):
		s.t.Fatal("nothing was received")
	}
	return nil
}

// decode decodes the next received message.
func decode[M proto.Message](s *testStream, into M) M {
	s.t.Helper()
	if err := proto.Unmarshal(s.next(), into); err != nil {
		s.t.Fatal(err)
	}
	return into
}

// fakeUpstream is an upstream server whose streams a test controls.
type fakeUpstream struct {
	t        testing.TB
	address  string
	server   *grpc.Server
	accepted chan *testStream
	slow     atomic.Bool // if set, new streams do not receive requests
}

func startUpstream(t testing.TB, address string) *fakeUpstream {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeUpstream{t: t, address: listener.Addr().String(),
		accepted: make(chan *testStream, 100),
		server: grpc.NewServer(grpc.ForceServerCodecV2(codec{}),
			grpc.MaxRecvMsgSize(maxRequestBytes))}
	handler := func(_ any, stream grpc.ServerStream) error {
		s := newTestStream(t, stream, f.slow.Load())
		end := make(chan error, 1)
		s.end = func(err error) { end <- err }
		f.accepted <- s
		select {
		case err := <-end:
			return err
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
	f.server.RegisterService(&grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			{StreamName: worldMethod, ServerStreams: true, ClientStreams: true, Handler: handler},
			{StreamName: deltaMethod, ServerStreams: true, ClientStreams: true, Handler: handler},
		}}, nil)
	go func() { _ = f.server.Serve(listener) }()
	t.Cleanup(f.server.Stop)
	return f
}

// accept waits for the next stream that a client opens, and returns it.
func (f *fakeUpstream) accept() *testStream {
	f.t.Helper()
	select {
	case s := <-f.accepted:
		return s
	case <-time.After(10 * time.Second):
		f.t.Fatal("the relay opens no stream")
		return nil
	}
}

func deltaResponse(nonce string, names ...string) *discoveryv3.DeltaDiscoveryResponse {
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: clusterType, Nonce: nonce}
	for _, name := range names {
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: name, Version: "v-" + name})
	}
	return r
}
