package discovery_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// door is a TLS server of a gateway.
type door struct {
	host string
	port int
}

// ask sends a request on a new connection, and returns the serial number of the server's
// certificate.
func (d door) ask() (string, error) {
	var serial string
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
		ServerName: d.host,
		VerifyConnection: func(state tls.ConnectionState) error {
			serial = state.PeerCertificates[0].SerialNumber.String()
			return nil
		}}, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1",
			strconv.Itoa(d.port)))
	}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Get("https://" +
		d.host + "/")
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d", answer.StatusCode)
	}
	return serial, nil
}

// serves waits until the server presents a certificate.
func (d door) serves(t *testing.T, serial int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s shows certificate %d", d.host, serial), func() (bool, string) {
		seen, err := d.ask()
		return seen == strconv.FormatInt(serial, 10), fmt.Sprint(seen, err)
	})
}

// keepAsking sends requests to the servers in turn until stop is called. None may fail.
func keepAsking(t *testing.T, doors []door) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		asked := 0
		for ; ctx.Err() == nil; asked++ {
			if _, err := doors[asked%len(doors)].ask(); err != nil {
				t.Errorf("%s: a request was lost: %v", doors[asked%len(doors)].host, err)
			}
		}
		t.Logf("%d requests", asked)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

const doorGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s}
spec:
  selector: {app: edge}
  servers:
  - port: {number: %[2]d, name: https, protocol: HTTPS}
    hosts: [%[1]s.test]
    tls: {mode: SIMPLE, serverCertificate: %[3]s/cert.pem, privateKey: %[3]s/key.pem}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s}
spec:
  hosts: [%[1]s.test]
  gateways: [%[1]s]
  http: [{directResponse: {status: 200}}]
`
