package discovery_test

import (
	"crypto/ecdsa"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/scripts/parts"
)

// TestCertificates_RenewalDrainsNoListener replaces a certificate by renaming a new one over it.
// New connections get the new certificate, open connections stay open, and no listener is replaced.
func TestCertificates_RenewalDrainsNoListener(t *testing.T) {
	authority, authorityKey := certificate(t)
	signer, err := tls.LoadX509KeyPair(authority, authorityKey)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "server.pem")
	issue(t, signer.Leaf, signer.PrivateKey.(*ecdsa.PrivateKey), 10, "server", path)
	port := parts.FreePort(t)
	directory := t.TempDir()
	write(t, filepath.Join(directory, "mesh.yaml"), fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  selector: {app: edge}
  servers:
  - port: {number: %d, name: https, protocol: HTTPS}
    hosts: ["*"]
    tls: {mode: SIMPLE, serverCertificate: %s, privateKey: %s}
`, port, path, path))
	server, _ := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
	e := startEnvoy(t, "router", server)
	dial := func() (*tls.Conn, error) {
		return tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp",
			net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
			&tls.Config{InsecureSkipVerify: true})
	}
	serial := func() string {
		connection, err := dial()
		if err != nil {
			return err.Error()
		}
		defer func() { _ = connection.Close() }()
		return connection.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	eventually(t, "the first certificate is served", func() (bool, string) {
		seen := serial()
		return seen == "10", seen
	})
	old, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()

	issue(t, signer.Leaf, signer.PrivateKey.(*ecdsa.PrivateKey), 11, "server", path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new certificate is served", func() (bool, string) {
		seen := serial()
		return seen == "11", seen
	})
	_ = old.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprint(old, "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"); err != nil {
		t.Error(err)
	}
	if n, err := old.Read(make([]byte, 12)); n == 0 {
		t.Errorf("a connection from before: %v", err)
	}
	if n := e.Stat("listener_manager.listener_modified"); n != 0 {
		t.Errorf("%d listeners were made anew", n)
	}
	for _, p := range server.Problems() {
		t.Error(p)
	}
}
