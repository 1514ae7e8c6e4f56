package endpoints

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
	"unicode"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Limits of a FailureService. Envoy sends at most 4 KB a message, and drops log entries while the
// service does not read.
const (
	readInterval = 50 * time.Millisecond // minimum interval between two messages, over all streams
	// maximum number of streams; each worker of an Envoy has two
	maxStreams = 512
	maxCause   = 200 // maximum length of a cause in bytes
)

// FailureService receives the access log of failures from Envoy (envoy.service.accesslog.v3).
type FailureService struct {
	alsv3.UnimplementedAccessLogServiceServer
	// IsOwnEnvoy reports whether a peer is an Envoy of this agent. Other peers are refused.
	IsOwnEnvoy func(peer net.Addr) bool
	OnFailure  func(EndpointFailure)

	mu      sync.Mutex
	streams int
	next    time.Time // earliest time at which the next message may be read
}

// StreamAccessLogs implements alsv3.AccessLogServiceServer. It reads at most one message per
// readInterval.
func (s *FailureService) StreamAccessLogs(stream alsv3.AccessLogService_StreamAccessLogsServer) error {
	from, ok := peer.FromContext(stream.Context())
	if !ok || !s.IsOwnEnvoy(from.Addr) {
		return status.Error(codes.PermissionDenied, "only Envoy may report failures")
	}
	if !s.join() {
		return status.Errorf(codes.ResourceExhausted, "%d streams are open, no more are allowed",
			maxStreams)
	}
	defer s.leave()
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, entry := range message.GetHttpLogs().GetLogEntry() {
			s.report(entry.GetCommonProperties())
		}
		for _, entry := range message.GetTcpLogs().GetLogEntry() {
			s.report(entry.GetCommonProperties())
		}
		if err := s.pause(stream.Context()); err != nil {
			return err
		}
	}
}

func (s *FailureService) join() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams >= maxStreams {
		return false
	}
	s.streams++
	return true
}

func (s *FailureService) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
}

// pause waits until the next message may be read.
func (s *FailureService) pause(ctx context.Context) error {
	s.mu.Lock()
	now := time.Now()
	if s.next.Before(now) {
		s.next = now
	}
	s.next = s.next.Add(readInterval)
	timer := time.NewTimer(s.next.Sub(now))
	s.mu.Unlock()
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// report passes the failure that an access log entry describes, if any, to OnFailure. The entry
// names the cluster as in Envoy's statistics.
func (s *FailureService) report(entry *accesslogv3.AccessLogCommon) {
	cluster, cause := strings.TrimSuffix(entry.GetUpstreamCluster(), ";"), causeOf(entry)
	if cause == "" || cluster != "" && ignored(cluster) || cluster == "" && cause != causeEmpty {
		return
	}
	s.OnFailure(EndpointFailure{Key: Key{cluster, addressOf(entry.GetUpstreamRemoteAddress())}, Cause: cause,
		Count: 1})
}

// ignored reports whether a cluster is not from the mesh configuration: Envoy's own clusters have
// no port in their names. It also ignores passthrough clusters, whose destinations clients choose.
func ignored(cluster string) bool {
	return !strings.Contains(cluster, "|") || strings.Contains(cluster, "PassthroughCluster")
}

const causeEmpty = "no healthy endpoint"

// causeOf returns why an endpoint failed; "" if the entry is not a failure of an endpoint.
func causeOf(entry *accesslogv3.AccessLogCommon) string {
	flags := entry.GetResponseFlags()
	reason := clean(entry.GetUpstreamTransportFailureReason())
	switch {
	case flags.GetUpstreamConnectionFailure() && reason != "":
		return reason
	case flags.GetUpstreamConnectionFailure():
		return "cannot connect"
	case flags.GetUpstreamConnectionTermination():
		return "it closed the connection before it answered"
	case flags.GetUpstreamRequestTimeout():
		return "no answer in time"
	case flags.GetNoHealthyUpstream():
		return causeEmpty
	}
	return ""
}

// clean removes prefixes such as "remote address:" from a transport failure reason of Envoy, and
// returns it as one line in lower case of at most maxCause bytes.
func clean(reason string) string {
	for _, class := range []string{"delayed connect error:", "immediate connect error:",
		"remote address:", "TLS_error:|"} {
		reason = strings.TrimPrefix(strings.TrimSpace(reason), class)
	}
	reason = strings.ToLower(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.TrimSpace(reason)))
	return strings.ToValidUTF8(reason[:min(len(reason), maxCause)], "")
}

func addressOf(address *corev3.Address) string {
	if socket := address.GetSocketAddress(); socket != nil {
		ip, err := netip.ParseAddr(socket.GetAddress())
		if err != nil {
			return ""
		}
		return netip.AddrPortFrom(ip, uint16(socket.GetPortValue())).String()
	}
	return address.GetPipe().GetPath()
}
