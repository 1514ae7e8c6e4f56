package prometheus_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

const hosts = 50

// scene is an edge proxy. It has 50 hosts on one port, each with a backend, a TLS port whose
// certificate is in files, a TLS port with a credential, and a TCP port. Its mesh configuration
// contains an object that is refused.
type scene struct {
	*rig.Rig
	file, credential int // TLS ports with a certificate from files, and from a credential
}

func host(i int) string { return fmt.Sprintf("host-%d.example.test", i) }

func newScene(t *testing.T) *scene {
	t.Helper()
	r := rig.New(t, rig.Options{Race: true})
	s := &scene{Rig: r, file: parts.FreePort(t), credential: parts.FreePort(t)}
	r.SetTOML(fmt.Sprintf("[node]\ntype = %q\n[identity]\ncredentials_dir = %q\n", "router",
		r.Dir+"/credentials"))
	s.writeCertificates(t)
	var mesh strings.Builder
	fmt.Fprintf(&mesh, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  servers:
  - {port: {number: %[1]d, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: %[2]d, name: tcp, protocol: TCP}, hosts: ["*"]}
  - port: {number: %[3]d, name: https, protocol: HTTPS}
    hosts: ["*"]
    tls: {mode: SIMPLE, serverCertificate: %[5]s/tls/tls.crt, privateKey: %[5]s/tls/tls.key}
  - port: {number: %[4]d, name: credential, protocol: HTTPS}
    hosts: ["*"]
    tls: {mode: SIMPLE, credentialName: edge}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tcp}
spec:
  hosts: ["*"]
  gateways: [edge]
  tcp: [{route: [{destination: {host: web.test, port: {number: %[2]d}}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: all}
spec:
  host: backend-0.internal
  trafficPolicy: {outlierDetection: {consecutive5xxErrors: 100}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: tls}
spec:
  host: backend-1.internal
  trafficPolicy:
    tls: {mode: MUTUAL, clientCertificate: %[5]s/tls/tls.crt, privateKey: %[5]s/tls/tls.key}
`, r.Ports.HTTP, r.Ports.TCP, s.file, s.credential, r.Dir)
	for i := range hosts {
		fmt.Fprintf(&mesh, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: host-%[1]d}
spec:
  hosts: [backend-%[1]d.internal]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[2]d}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: host-%[1]d}
spec:
  hosts: [%[3]s]
  gateways: [edge]
  http: [{route: [{destination: {host: backend-%[1]d.internal, port: {number: 80}}}]}]
`, i, r.Ports.Backend, host(i))
	}
	r.WriteFile("mesh.d/edge.yaml", mesh.String())
	r.WriteFile("mesh.d/refused.yaml",
		"{apiVersion: networking.istio.io/v1, kind: VirtualService, "+
			"metadata: {name: refused}, spec: {nosuch: 1}}")
	r.StartReady()
	for _, port := range []int{s.file, s.credential} {
		rig.Eventually(t, time.Minute, "a listener has its certificate", func() bool {
			connection, err := s.dialTLS(t, port)
			if err == nil {
				_ = connection.Close()
			}
			return err == nil
		})
	}
	return s
}

func (s *scene) dialTLS(t *testing.T, port int) (net.Conn, error) {
	dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Minute},
		Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the test's own
	return dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

func (s *scene) writeCertificates(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host(0)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"tls", "credentials/edge"} {
		s.WriteFile(folder+"/tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
			Bytes: certificate})))
		s.WriteFile(folder+"/tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY",
			Bytes: encoded})))
	}
}

// exercise sends a request to each backend, requests with responses of each status class to one
// backend, and requests to the TLS and TCP ports.
func (s *scene) exercise(t *testing.T) {
	t.Helper()
	for i := range hosts {
		if _, _, err := s.GetHostThroughEnvoy(host(i), s.Ports.HTTP, "/"); err != nil {
			t.Fatal(err)
		}
	}
	for _, status := range []int{301, 404, 500} {
		_, _, err := s.GetHostThroughEnvoy(host(0), s.Ports.HTTP, fmt.Sprintf("/status/%d", status))
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, port := range []int{s.file, s.credential} {
		connection, err := s.dialTLS(t, port)
		if err != nil {
			t.Fatal(err)
		}
		talk(t, connection, fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host(0)))
	}
	connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", s.Ports.TCP), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	talk(t, connection, "ping\n")
}

// talk sends a text, waits for the first byte of the response and closes the connection.
func talk(t *testing.T, connection net.Conn, text string) {
	t.Helper()
	defer func() { _ = connection.Close() }()
	if _, err := io.WriteString(connection, text); err != nil {
		t.Fatal(err)
	}
	if _, err := connection.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// scrape returns the metrics that Outrider serves on a port.
func (s *scene) scrape(t *testing.T, port int) string {
	t.Helper()
	status, text, err := s.GetHostThroughEnvoy("localhost", port, "/stats/prometheus")
	if err != nil || status != http.StatusOK {
		t.Fatalf("%d %v", status, err)
	}
	return text
}
