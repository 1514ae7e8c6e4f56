package discovery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Ports of the services through which requests are counted.
const (
	metricsHTTP  = 7501 // mutual TLS to port peerHTTP
	metricsPlain = 7502 // plain text to port peerHTTP
	metricsTCP   = 7503 // mutual TLS to port peerTCP
	metricsGRPC  = 7504 // mutual TLS to port peerOwn
	metricsDead  = 7505 // an endpoint that refuses connections
	metricsEmpty = 7506 // no endpoint
	metricsRaw   = 7507 // plain text to an echo server
	metricsGone  = 7508 // TCP to an endpoint that refuses connections
)

// metricsObjects are the objects of TestMetrics: a workload that calls itself.
const metricsObjects = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  ingress:
  - {port: {number: 7301, protocol: HTTP, name: http}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:$APP"}
  - {port: {number: 7302, protocol: TCP, name: tcp}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:$ECHO"}
  - {port: {number: 7303, protocol: GRPC, name: grpc}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:$GRPC"}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: one, namespace: shop}
spec: {address: 127.0.0.1, serviceAccount: vm, labels: {app: pay, version: v2, service.istio.io/workload-name: pay-v2}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mutual, namespace: shop}
spec:
  hosts: [pay.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 7501, name: http, protocol: HTTP, targetPort: 7301}
  - {number: 7503, name: tcp, protocol: TCP, targetPort: 7302}
  - {number: 7504, name: grpc, protocol: GRPC, targetPort: 7303}
  workloadSelector: {labels: {app: pay}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: plain, namespace: shop}
spec:
  hosts: [plain.test]
  resolution: STATIC
  ports:
  - {number: 7502, name: http, protocol: HTTP, targetPort: 7301}
  - {number: 7507, name: raw, protocol: TCP, targetPort: $ECHO}
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: dead, namespace: shop}
spec:
  hosts: [dead.test]
  resolution: STATIC
  ports:
  - {number: 7505, name: http, protocol: HTTP, targetPort: $CLOSED}
  - {number: 7508, name: tcp, protocol: TCP, targetPort: $CLOSED}
  endpoints: [{address: 127.0.0.1, labels: {app: dead}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: empty, namespace: shop}
spec: {hosts: [empty.test], resolution: STATIC, ports: [{number: 7506, name: http, protocol: HTTP}], workloadSelector: {labels: {app: nobody}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: pay, namespace: shop}
spec:
  hosts: [pay.test]
  http:
  - {match: [{uri: {prefix: /late}}], timeout: 0.1s, rewrite: {uri: /delay/20s}, route: [{destination: {host: pay.test, port: {number: 7501}}}]}
  - {match: [{uri: {prefix: /again}}], retries: {attempts: 2, retryOn: 5xx, perTryTimeout: 5s}, rewrite: {uri: /status/503}, route: [{destination: {host: pay.test, port: {number: 7501}}}]}
  - {match: [{uri: {prefix: /abort}}], fault: {abort: {httpStatus: 418, percentage: {value: 100}}}, route: [{destination: {host: pay.test, port: {number: 7501}}}]}
  - {match: [{uri: {prefix: /direct}}], directResponse: {status: 402}}
  - {match: [{uri: {prefix: /redirect}}], redirect: {uri: /elsewhere}}
  - {match: [{port: 7501}], route: [{destination: {host: pay.test, port: {number: 7501}}}]}
  - {match: [{port: 7504}], route: [{destination: {host: pay.test, port: {number: 7504}}}]}
`

func getThrough(port int, path string, header ...string) string {
	host := "pay.test"
	switch port {
	case metricsPlain:
		host = "plain.test"
	case metricsDead:
		host = "dead.test"
	case metricsEmpty:
		host = "empty.test"
	}
	return sendThrough(context.Background(), port, host, path, header...)
}

func getHost(port int, host, path string) string {
	return sendThrough(context.Background(), port, host, path)
}

// sendThrough sends a request to a port, and returns the status of the response, or "failed".
func sendThrough(ctx context.Context, port int, host, path string, header ...string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		return err.Error()
	}
	request.Host = fmt.Sprintf("%s:%d", host, port)
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		return "failed"
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, response.Body)
	return fmt.Sprint(response.StatusCode)
}

func http2Through(port int, path string) string {
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path),
		nil)
	if err != nil {
		return err.Error()
	}
	request.Host = fmt.Sprintf("pay.test:%d", port)
	transport := &http.Transport{Protocols: &http.Protocols{}}
	defer transport.CloseIdleConnections()
	transport.Protocols.SetUnencryptedHTTP2(true)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err.Error()
	}
	_ = response.Body.Close()
	return fmt.Sprint(response.StatusCode)
}

// talkTCP sends a line to a port and returns the answer.
func talkTCP(port int) string {
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = connection.Close() }()
	_ = connection.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(connection, "hello\n")
	var answer bytes.Buffer
	_, _ = io.CopyN(&answer, connection, int64(len("step:hello\n")))
	return answer.String()
}

// serveGRPC runs a server with the methods unary, which answers once all messages have arrived,
// echo, which answers each, and denied.
func serveGRPC(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		answers := 0
		for {
			err := stream.RecvMsg(&emptypb.Empty{})
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			switch method {
			case "/test/denied":
				return status.Error(codes.PermissionDenied, "no")
			case "/test/gone":
				return status.Error(codes.Unimplemented, "no")
			case "/test/echo":
				if err := stream.SendMsg(&emptypb.Empty{}); err != nil {
					return err
				}
				answers++
			}
		}
		if answers == 0 {
			return stream.SendMsg(&emptypb.Empty{})
		}
		return nil
	}))
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().(*net.TCPAddr).Port
}

// callGRPC calls a method with a number of messages, and returns the name of the status.
func callGRPC(t *testing.T, method string, messages int) string {
	t.Helper()
	connection, err := grpc.NewClient(fmt.Sprintf("passthrough:///127.0.0.1:%d", metricsGRPC),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("pay.test"))
	must(t, err)
	defer func() { _ = connection.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true,
		ClientStreams: true}, "/test/"+method)
	if err != nil {
		return status.Code(err).String()
	}
	for range messages {
		if stream.SendMsg(&emptypb.Empty{}) != nil {
			break
		}
	}
	_ = stream.CloseSend()
	for {
		if err := stream.RecvMsg(&emptypb.Empty{}); errors.Is(err, io.EOF) {
			return codes.OK.String()
		} else if err != nil {
			return status.Code(err).String()
		}
	}
}
