package endpoints

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// flood is a stream that always has another message.
type flood struct {
	grpc.ServerStream
	ctx context.Context
}

func (f flood) Context() context.Context { return f.ctx }

func (f flood) SendAndClose(*alsv3.StreamAccessLogsResponse) error { return nil }

func (f flood) Recv() (*alsv3.StreamAccessLogsMessage, error) {
	if f.ctx.Err() != nil {
		return nil, io.EOF
	}
	return &alsv3.StreamAccessLogsMessage{LogEntries: &alsv3.StreamAccessLogsMessage_TcpLogs{
		TcpLogs: &alsv3.StreamAccessLogsMessage_TCPAccessLogEntries{
			LogEntry: []*accesslogv3.TCPAccessLogEntry{{CommonProperties: refusedEntry(web.Cluster)}},
		}}}, nil
}

func refusedEntry(cluster string) *accesslogv3.AccessLogCommon {
	return &accesslogv3.AccessLogCommon{UpstreamCluster: cluster + ";",
		ResponseFlags:                  &accesslogv3.ResponseFlags{UpstreamConnectionFailure: true},
		UpstreamTransportFailureReason: "delayed connect error: Connection refused",
		UpstreamRemoteAddress: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: "10.0.0.1",
				PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}}}}}
}

func TestService_ReadsAFloodSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := make(chan EndpointFailure, 1000)
		s := &FailureService{IsOwnEnvoy: func(net.Addr) bool { return true },
			OnFailure: func(f EndpointFailure) { read <- f }}
		ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{}))
		ended := make(chan error, 3)
		for range 3 {
			go func() { ended <- s.StreamAccessLogs(flood{ctx: ctx}) }()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		cancel()
		for range 3 {
			<-ended
		}
		if n := len(read); n < 190 || n > 210 {
			t.Errorf("%d messages of three streams in ten seconds", n)
		}
		if f := <-read; f != refused {
			t.Errorf("%+v, want %+v", f, refused)
		}
	})
}

func TestService_RefusesOthers(t *testing.T) {
	s := &FailureService{IsOwnEnvoy: func(net.Addr) bool { return false }}
	err := s.StreamAccessLogs(flood{ctx: peer.NewContext(t.Context(), &peer.Peer{})})
	if status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	s.IsOwnEnvoy, s.streams = func(net.Addr) bool { return true }, maxStreams
	err = s.StreamAccessLogs(flood{ctx: peer.NewContext(t.Context(), &peer.Peer{})})
	if status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}

// TestService_IgnoresWhatIsNotConfigured: failures of Envoy's own clusters, and of destinations
// that clients choose, are ignored.
func TestService_IgnoresWhatIsNotConfigured(t *testing.T) {
	for _, cluster := range []string{"xds-grpc", "agent", "PassthroughCluster", "BlackHoleCluster",
		"InboundPassthroughCluster"} {
		s := &FailureService{OnFailure: func(f EndpointFailure) { t.Errorf("%+v", f) }}
		s.report(refusedEntry(cluster))
	}
}

func TestClean(t *testing.T) {
	for reason, want := range map[string]string{
		"delayed connect error: Connection refused":                      "connection refused",
		"remote address:10.0.0.1:80|TLS_error:|268435581:SSL\nroutines:": "10.0.0.1:80|tls_error:|268435581:ssl routines:",
	} {
		if got := clean(reason); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
