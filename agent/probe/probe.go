// Package probe runs single probes of an application with the semantics of Kubernetes.
package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	redirectsAtMost = 10
	bodyRead        = 10 << 10
)

// HTTP sends a request and returns the status code of the response. It does not verify
// certificates. It follows redirects to the same host only.
func HTTP(request *http.Request) (int, error) {
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives:  true,
			DisableCompression: true,
			TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // checks no identity
		},
		CheckRedirect: SameHost,
	}
	response, err := client.Do(request) //nolint:gosec // the URL is in the configuration
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return 0, err
	}
	defer response.Body.Close()
	// Read the body, so that the application does not fail to write its response.
	_, _ = io.CopyN(io.Discard, response.Body, bodyRead)
	return response.StatusCode, nil
}

// SameHost is an http.Client.CheckRedirect that follows redirects to the same host only. A redirect
// to another host is returned as the response.
func SameHost(request *http.Request, via []*http.Request) error {
	if request.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= redirectsAtMost {
		return fmt.Errorf("more than %d redirects", redirectsAtMost)
	}
	return nil
}

// TCP connects to host:port.
func TCP(ctx context.Context, address string) error {
	connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return connection.Close()
}

// GRPC queries the standard health service (grpc.health.v1) at host:port/service.
func GRPC(ctx context.Context, target string) error {
	address, service, _ := strings.Cut(target, "/")
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent("outrider"))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	answer, err := healthv1.NewHealthClient(connection).Check(ctx,
		&healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		return err
	}
	if answer.Status != healthv1.HealthCheckResponse_SERVING {
		return fmt.Errorf("the gRPC health check returned %s", answer.Status)
	}
	return nil
}
