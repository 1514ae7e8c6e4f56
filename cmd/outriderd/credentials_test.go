package main_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// credentialMesh is a gateway with three TLS servers, and with a plain HTTP server that forwards
// requests to the TLS server that requires a client certificate.
const credentialMesh = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  servers:
  - port: {number: %[1]d, name: simple, protocol: HTTPS}
    hosts: [simple.test]
    tls: {mode: SIMPLE, credentialName: simple}
  - port: {number: %[1]d, name: mutual, protocol: HTTPS}
    hosts: [mutual.test]
    tls: {mode: MUTUAL, credentialName: mutual}
  - port: {number: %[1]d, name: optional, protocol: HTTPS}
    hosts: [optional.test]
    tls: {mode: OPTIONAL_MUTUAL, credentialName: optional, caCertCredentialName: mutual}
  - port: {number: %[2]d, name: plain, protocol: HTTP}
    hosts: [mutual.test]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tls}
spec:
  hosts: [simple.test, optional.test]
  gateways: [edge]
  http: [{directResponse: {status: 200}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: mutual}
spec:
  hosts: [mutual.test]
  gateways: [edge]
  http:
  - match: [{port: %[1]d}]
    directResponse: {status: 200, body: {string: arrived}}
  - route: [{destination: {host: mutual.test}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mutual}
spec:
  hosts: [mutual.test]
  resolution: STATIC
  ports: [{number: %[1]d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: mutual}
spec:
  host: mutual.test
  trafficPolicy:
    tls: {mode: MUTUAL, credentialName: client, sni: mutual.test}
    connectionPool: {http: {maxRequestsPerConnection: 1}} # Envoy keeps connections when roots change
`

// credentials is an agent with node type router and without an identity provider. Its Gateways and
// DestinationRules name credentials, which are files.
type credentials struct {
	*rig.Rig
	t                *testing.T
	root             *pkitest.Authority
	https, plainHTTP int
}

func newCredentials(t *testing.T) *credentials {
	t.Helper()
	c := &credentials{t: t, root: pkitest.NewAuthority(t, "root", nil), https: parts.FreePort(t),
		plainHTTP: parts.FreePort(t)}
	c.Rig = rig.New(t, rig.Options{Race: true, TOML: "[node]\ntype = \"router\"\n"})
	c.WriteFile("conf.d/60-credentials.toml", fmt.Sprintf("[identity]\ncredentials_dir = %q\n",
		filepath.Join(c.Dir, "credentials")))
	c.WriteFile("mesh.d/credentials.yaml", fmt.Sprintf(credentialMesh, c.https, c.plainHTTP))
	return c
}

// issue writes the three files of a credential one by one, and returns the certificate chain.
func (c *credentials) issue(name string) (chain []byte) {
	c.t.Helper()
	chain, key := c.root.Issue(c.t, pkitest.LeafTemplate(name, time.Hour))
	for file, text := range map[string][]byte{
		"tls.crt": chain, "tls.key": key, "ca.crt": pkitest.PEM(c.root.Certificate),
	} {
		c.WriteFile(filepath.Join("credentials", name, file), string(text))
	}
	return chain
}

// get requests a host over TLS, and returns the server's certificate. client is the client
// certificate; nil: none.
func (c *credentials) get(host string, client *tls.Certificate) (*x509.Certificate, error) {
	// the caller compares the certificate
	config := &tls.Config{ServerName: host, InsecureSkipVerify: true}
	// present it even if the server does not request one
	if client != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return client, nil
		}
	}
	address := fmt.Sprintf("https://127.0.0.1:%d/", c.https)
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Host = host
	sender := http.Client{Timeout: 5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	response, err := sender.Do(request)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	return response.TLS.PeerCertificates[0], err
}

func (c *credentials) serves(host string, client *tls.Certificate, chain []byte) {
	c.t.Helper()
	rig.Eventually(c.t, time.Minute, host+" serves its credential", func() bool {
		got, err := c.get(host, client)
		return err == nil && bytes.Equal(pkitest.PEM(got), chain)
	})
}

func TestCredentials_OfGatewaysAndDestinationRules(t *testing.T) {
	c := newCredentials(t)
	simple := c.issue("simple")
	c.StartReady()
	// This server works although the credentials of the other servers are missing.
	c.serves("simple.test", nil, simple)
	if _, err := c.get("mutual.test", nil); err == nil {
		t.Error("a server without its credential serves")
	}
	checked := c.RunOutrider("mesh", "check")
	missing := filepath.Join(c.Dir, "mesh.d", "credentials.yaml") + ":1: Gateway default/edge: " +
		filepath.Join(c.Dir, "credentials", "mutual", "tls.crt") + " does not exist"
	if checked.ExitCode != api.ExitRefused || !strings.Contains(checked.Stderr, missing) {
		t.Errorf("mesh check: exit %d, without %q:\n%s", checked.ExitCode, missing, checked.Stderr)
	}

	chain, key := c.root.Issue(t, pkitest.LeafTemplate("client", time.Hour))
	client, err := tls.X509KeyPair(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	other, otherKey := pkitest.NewAuthority(t, "other", nil).Issue(t, pkitest.LeafTemplate("x",
		time.Hour))
	foreign, err := tls.X509KeyPair(other, otherKey)
	if err != nil {
		t.Fatal(err)
	}
	mutual, optional := c.issue("mutual"), c.issue("optional")
	c.issue("client")
	c.serves("mutual.test", &client, mutual)
	c.serves("optional.test", nil, optional)
	c.serves("optional.test", &client, optional)
	if _, err := c.get("mutual.test", nil); err == nil {
		t.Error("mutual.test accepts a client without a certificate")
	}
	if _, err := c.get("optional.test", &foreign); err == nil {
		t.Error("optional.test accepts a client of another authority")
	}
	rig.Eventually(t, time.Minute, "the DestinationRule's credential is accepted", func() bool {
		code, body, err := c.GetHostThroughEnvoy("mutual.test", c.plainHTTP, "/")
		return err == nil && code == http.StatusOK && body == "arrived"
	})
	rig.Eventually(t, time.Minute, "mesh check finds nothing", func() bool {
		return c.RunOutrider("mesh", "check").ExitCode == 0
	})
	c.serves("simple.test", nil, c.issue("simple"))

	own := filepath.Join(c.Dir, "credentials", "client-cacert") // has precedence over client/ca.crt
	c.WriteFile("credentials/client-cacert/ca.crt", string(pkitest.PEM(
		pkitest.NewAuthority(t, "another", nil).Certificate)))
	rig.Eventually(t, time.Minute, "the server is not trusted any more", func() bool {
		code, _, err := c.GetHostThroughEnvoy("mutual.test", c.plainHTTP, "/")
		return err == nil && code == http.StatusServiceUnavailable
	})
	if err := os.RemoveAll(own); err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, time.Minute, "the server is trusted again", func() bool {
		code, _, err := c.GetHostThroughEnvoy("mutual.test", c.plainHTTP, "/")
		return err == nil && code == http.StatusOK
	})
}
