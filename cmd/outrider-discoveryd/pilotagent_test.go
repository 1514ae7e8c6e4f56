package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/mcp"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
)

const account = "spiffe://cluster.local/ns/shop/sa/"

// TestProgram_ServesPilotAgent runs Istio's agent, with certificates from files, and its Envoy. The
// agent connects to this program, over mutual TLS, instead of istiod. A request through Envoy
// reaches a backend that requires the workload's certificate, which pilot-agent serves to Envoy.
func TestProgram_ServesPilotAgent(t *testing.T) {
	t.Parallel()
	directory := parts.ShortDir(t)
	authority := pkitest.NewAuthority(t, "root", nil)
	for _, name := range []string{"mesh", "etc/certs"} {
		if err := os.MkdirAll(filepath.Join(directory, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	certs := filepath.Join(directory, "etc", "certs")
	issue(t, authority, "server", filepath.Join(directory, "cert"), filepath.Join(directory, "key"))
	issue(t, authority, "web", filepath.Join(certs, "cert-chain.pem"),
		filepath.Join(certs, "key.pem"))
	write(t, filepath.Join(certs, "root-cert.pem"), string(pkitest.PEM(authority.Certificate)))
	port := parts.FreePort(t)
	write(t, filepath.Join(directory, "mesh", "a.yaml"), fmt.Sprintf(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: backend, namespace: shop}
spec:
  hosts: [backend.test]
  addresses: [127.0.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints:
  - address: 127.0.0.1
    ports: {http: %d}
    serviceAccount: backend
    labels: {security.istio.io/tlsMode: istio}
`, port, mutualBackend(t, authority)))
	secure, monitoring := parts.FreePort(t), parts.FreePort(t)
	file := filepath.Join(directory, "discoveryd.toml")
	write(t, file, fmt.Sprintf(`[paths]
state_dir = "state"
[listen]
plaintext = ""
tls = "127.0.0.1:%d"
monitoring = "127.0.0.1:%d"
[tls]
cert_file = "cert"
key_file = "key"
client_ca_file = "etc/certs/root-cert.pem"
[auth]
require = "mtls"
[[source]]
paths = ["mesh"]
`, secure, monitoring))
	start(t, file, monitoring)

	dns := parts.FreePort(t)
	agent := startPilotAgent(t, directory, secure, dns)
	parts.EventuallyWithObservation(t, 2*time.Minute, "a request reaches the backend", func() (bool, string) {
		status, body := request(port, "backend.test")
		return status == http.StatusOK && body == account+"web", fmt.Sprint(status, " ", body)
	})
	parts.EventuallyWithObservation(t, time.Minute, "pilot-agent is ready", func() (bool, string) {
		status, body := ask("GET", agent+"/healthz/ready", "", "")
		return status == http.StatusOK, body
	})
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", fmt.Sprintf("127.0.0.1:%d", dns))
	}}
	found, err := resolver.LookupHost(t.Context(), "backend.test.")
	if err != nil || !slices.Equal(found, []string{"127.0.0.1"}) {
		t.Errorf("pilot-agent resolves the backend to %v (%v)", found, err)
	}

	client, err := mcp.New(mcp.Options{Name: "test", Address: fmt.Sprintf("127.0.0.1:%d", secure),
		CAFile:   filepath.Join(certs, "root-cert.pem"),
		CertFile: filepath.Join(certs, "cert-chain.pem"), KeyFile: filepath.Join(certs, "key.pem"),
		Sink: (&sourcetest.Receiver{}).AcceptUpdate, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	runUntilEnd(t, client.Run)
	parts.EventuallyWithObservation(t, time.Minute, "another server reads the objects with this certificate",
		func() (bool, string) {
			now := client.Status()
			return now.Synced && now.Inputs == 1, fmt.Sprint(now.Err)
		})
}

// issue writes a certificate and its key for a service account in the namespace shop.
func issue(t *testing.T, authority *pkitest.Authority, name, certificate, key string) {
	t.Helper()
	template := pkitest.LeafTemplate(name, time.Hour)
	template.DNSNames = []string{"istiod.istio-system.svc"}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	id, err := url.Parse(account + name)
	if err != nil {
		t.Fatal(err)
	}
	template.URIs = []*url.URL{id}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
		x509.ExtKeyUsageClientAuth}
	chain, private := authority.Issue(t, template)
	write(t, certificate, string(chain))
	write(t, key, string(private))
}

// mutualBackend runs an HTTP server that requires mutual TLS, and returns its port. It responds
// with the SPIFFE ID of the client.
func mutualBackend(t *testing.T, authority *pkitest.Authority) (port int) {
	t.Helper()
	directory := t.TempDir()
	certificate, key := filepath.Join(directory, "cert"), filepath.Join(directory, "key")
	issue(t, authority, "backend", certificate, key)
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.Certificate)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12,
		Certificates: []tls.Certificate{pair}, ClientCAs: roots,
		ClientAuth: tls.RequireAndVerifyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].URIs[0].String())
		})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().(*net.TCPAddr).Port
}

// request sends an HTTP request with the given Host header to a port of this machine.
func request(port int, host string) (status int, body string) {
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		return 0, err.Error()
	}
	request.Host = host
	client := http.Client{Timeout: 10 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// startPilotAgent starts pilot-agent in a directory that contains etc/certs. server is the port of
// its istiod, and dns the port of its DNS proxy. It returns the URL of pilot-agent's status server.
func startPilotAgent(t *testing.T, directory string, server, dns int) string {
	t.Helper()
	program := parts.BuildIstio(t, "istio.io/istio/pilot/cmd/pilot-agent")
	source, err := parts.IstioSourceDir()
	if err != nil {
		t.Fatal(err)
	}
	status := parts.FreePort(t)
	config, err := json.Marshal(map[string]any{
		"discoveryAddress": fmt.Sprintf("localhost:%d", server), "concurrency": 1,
		"controlPlaneAuthPolicy": "MUTUAL_TLS", "statusPort": status,
		"binaryPath": parts.EnvoyPath(t), "proxyAdminPort": parts.FreePort(t),
		"configPath": "./proxy", "terminationDrainDuration": "1s",
		"proxyBootstrapTemplatePath": filepath.Join(source,
			"tools/packaging/common/envoy_bootstrap.json"),
		"proxyMetadata": map[string]string{
			"ISTIO_META_TLS_CLIENT_CERT_CHAIN": "./etc/certs/cert-chain.pem",
			"ISTIO_META_TLS_CLIENT_KEY":        "./etc/certs/key.pem",
			"ISTIO_META_TLS_CLIENT_ROOT_CERT":  "./etc/certs/root-cert.pem",
			"ISTIO_META_INTERCEPTION_MODE":     "NONE",
			"PROXY_CONFIG_XDS_AGENT":           "true",
		}})
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "proxy", "sidecar", "--meshConfig", "./none.yaml",
		"--log_output_level", "default:info")
	command.Dir = directory
	command.Env = append(os.Environ(), "ISTIO_META_DNS_CAPTURE=true", "POD_NAME=vm", "POD_NAMESPACE=shop",
		"INSTANCE_IP=127.0.0.1",
		"SERVICE_ACCOUNT=web", "CLOUD_PLATFORM=none", "FILE_MOUNTED_CERTS=true",
		"TRUST_DOMAIN=cluster.local", "PROXY_CONFIG="+string(config),
		fmt.Sprintf("DNS_PROXY_ADDR=127.0.0.1:%d", dns),
		fmt.Sprintf("ENVOY_STATUS_PORT=%d", parts.FreePort(t)),
		fmt.Sprintf("ENVOY_PROMETHEUS_PORT=%d", parts.FreePort(t)))
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	log := &parts.SyncBuffer{}
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// kills the process group of pilot-agent, which includes Envoy
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
		if text := log.String(); t.Failed() {
			t.Logf("pilot-agent: %s", text[max(0, len(text)-12000):])
		}
	})
	return fmt.Sprintf("http://127.0.0.1:%d", status)
}
