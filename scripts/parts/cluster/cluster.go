// Package cluster runs a control plane on loopback for tests: etcd, the Kubernetes API server and
// real istiods that use it.
package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// IstiodServerName is the DNS name in the certificate of istiods.
const IstiodServerName = "istiod.istio-system.svc"

// Cluster is a running control plane.
type Cluster struct {
	t       testing.TB
	api     string // URL of the API server
	client  *http.Client
	work    string
	istiods int
	plain   string // plaintext xDS address of the istiod started last
	debug   string // HTTP address of the istiod started last, with debug pages

	pid int // process started last

	programs, etcd, peers string
	stop                  func() // kills etcd and the API server
}

// startTime bounds the time until a started program is ready.
const startTime = 3 * time.Minute

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "%s", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`

// Start starts etcd and the API server, and creates Istio's CRDs. Both programs are killed when the
// test ends.
func Start(t testing.TB) *Cluster {
	t.Helper()
	out, err := exec.Command(filepath.Join(parts.RepositoryRoot(), "scripts",
		"get-kubernetes")).Output()
	if err != nil {
		t.Fatalf("get Kubernetes: %v", err)
	}
	programs := strings.TrimSpace(string(out))
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig.InsecureSkipVerify = true
	t.Cleanup(transport.CloseIdleConnections)
	port := parts.FreePort(t)
	c := &Cluster{t: t, api: fmt.Sprintf("https://127.0.0.1:%d", port), work: t.TempDir(),
		client: &http.Client{Timeout: startTime, Transport: transport}}
	c.programs, c.etcd, c.peers = programs, fmt.Sprintf("http://127.0.0.1:%d", parts.FreePort(t)),
		fmt.Sprintf("http://127.0.0.1:%d", parts.FreePort(t))
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
		Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	c.write("tokens.csv", "secret,admin,admin,system:masters\n")
	c.write("kubeconfig", fmt.Sprintf(kubeconfig, c.api))
	c.startServer()
	c.CreateCRDs()
	c.Create("/api/v1/namespaces", "metadata: {name: istio-system}")
	return c
}

// CreateCRDs creates Istio's CRDs.
func (c *Cluster) CreateCRDs() {
	c.t.Helper()
	source, err := parts.IstioSourceDir()
	if err != nil {
		c.t.Fatal(err)
	}
	all, err := os.ReadFile(source + "/manifests/charts/base/files/crd-all.gen.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	for definition := range strings.SplitSeq(string(all), "\n---\n") {
		c.Create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
	}
}

// StartIstiod starts an istiod with additional environment variables. It returns the istiod's xDS
// address with TLS, and a function that kills it. The istiod is also killed when the test ends.
func (c *Cluster) StartIstiod(environment ...string) (address string, kill func()) {
	c.t.Helper()
	path, err := parts.IstiodPath()
	if err != nil {
		c.t.Fatal(err)
	}
	var ports [4]string
	for i := range ports {
		ports[i] = fmt.Sprintf("127.0.0.1:%d", parts.FreePort(c.t))
	}
	c.istiods++
	kill = c.run(path, append([]string{fmt.Sprintf("POD_NAME=istiod-%d", c.istiods),
		"POD_NAMESPACE=istio-system", "PILOT_ENABLE_METADATA_EXCHANGE=false",
		"PILOT_ENABLE_ALPN_FILTER=false", "INJECT_ENABLED=false", "JWT_POLICY=third-party-jwt",
		"CLUSTER_ID=Kubernetes", "VALIDATION_WEBHOOK_CONFIG_NAME=", "ISTIOD_ADDR=" + ports[1]},
		environment...), "discovery", "--kubeconfig", c.work+"/kubeconfig",
		"--grpcAddr", ports[0], "--secureGRPCAddr", ports[1], "--httpAddr", ports[2],
		"--httpsAddr=", "--monitoringAddr", ports[3], "--ctrlz_port", "0")
	parts.Eventually(c.t, startTime, "istiod is ready", func() bool {
		response, err := c.client.Get("http://" + ports[2] + "/ready")
		if err == nil {
			_ = response.Body.Close()
		}
		return err == nil && response.StatusCode == http.StatusOK
	})
	c.plain, c.debug = ports[0], ports[2]
	return ports[1], kill
}

// IstiodPlaintextAddress returns the plaintext xDS address of the istiod started last.
func (c *Cluster) IstiodPlaintextAddress() string { return c.plain }

// LastProgramPID returns the PID of the program started last.
func (c *Cluster) LastProgramPID() int { return c.pid }

// run starts a program. It is killed when the test ends, or when kill is called. If the test fails,
// the end of its output is logged.
func (c *Cluster) run(path string, environment []string, arguments ...string) (kill func()) {
	c.t.Helper()
	log, err := os.CreateTemp(c.work, filepath.Base(path)+"-*.log")
	if err != nil {
		c.t.Fatal(err)
	}
	command := exec.Command(path, arguments...)
	command.Dir, command.Env = c.work, append(os.Environ(), environment...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.pid = command.Process.Pid
	kill = sync.OnceFunc(func() { _ = command.Process.Kill(); _ = command.Wait() })
	c.t.Cleanup(func() {
		kill()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && c.t.Failed() {
			c.t.Logf("%s: %s", filepath.Base(path), text[max(0, len(text)-4000):])
		}
	})
	return kill
}

// APIClients returns the URL of the API server, a client with all rights, and a client without a
// token.
func (c *Cluster) APIClients() (url string, administrator, nobody *http.Client) {
	return c.api, &http.Client{Timeout: startTime, Transport: asAdministrator{c.client.Transport}},
		c.client
}

type asAdministrator struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a asAdministrator) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("Authorization", "Bearer secret")
	return a.RoundTripper.RoundTrip(request)
}

func (c *Cluster) write(name, text string) {
	c.t.Helper()
	c.writeFile(filepath.Join(c.work, name), text)
}

func (c *Cluster) writeFile(path, text string) {
	c.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// send sends a request to the API server. When ctx ends, reading the response's body fails.
func (c *Cluster) send(ctx context.Context, client *http.Client,
	method, path, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.api+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer secret")
	request.Header.Set("Content-Type", "application/yaml")
	switch {
	case method != http.MethodPatch:
	case strings.HasPrefix(body, "{"):
		request.Header.Set("Content-Type", "application/merge-patch+json")
	default:
		request.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	return client.Do(request)
}

// request sends a request to the API server and returns the status code and body of the response.
// If there is no response, it returns 0 and the text of the error.
func (c *Cluster) request(method, path, body string) (int, []byte) {
	response, err := c.send(context.Background(), c.client, method, path, body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer func() { _ = response.Body.Close() }()
	var text bytes.Buffer
	if _, err := io.Copy(&text, response.Body); err != nil {
		return 0, []byte(err.Error())
	}
	return response.StatusCode, text.Bytes()
}

// Create creates an object, given as YAML, and returns it as JSON. It waits until the type of the
// object is defined.
func (c *Cluster) Create(path, object string) []byte {
	c.t.Helper()
	return c.sendDefined(http.MethodPost, path, object)
}

// sendDefined sends an object, given as YAML, until its type is defined, and returns the response.
func (c *Cluster) sendDefined(method, path, object string) []byte {
	c.t.Helper()
	var text []byte
	parts.Eventually(c.t, startTime, path+" is served", func() (done bool) {
		var code int
		code, text = c.request(method, path, object)
		switch code {
		case http.StatusOK, http.StatusCreated:
			return true
		case http.StatusNotFound:
			return false
		}
		c.t.Fatalf("%s %s: %d %s", method, path, code, text)
		return false
	})
	return text
}

// Get reads an object and decodes it into a value. It reports whether the object exists.
func (c *Cluster) Get(path string, into any) bool {
	code, text := c.request(http.MethodGet, path, "")
	if code == http.StatusOK {
		if err := json.Unmarshal(text, into); err != nil {
			c.t.Errorf("%s: %v", path, err)
		}
	} else if code != http.StatusNotFound {
		c.t.Errorf("get %s: %d %s", path, code, text)
	}
	return code == http.StatusOK
}

// IstiodRootCertificates returns the root certificates that istiod publishes for proxies in a
// namespace.
func (c *Cluster) IstiodRootCertificates(namespace string) string {
	c.t.Helper()
	var roots struct{ Data map[string]string }
	parts.Eventually(c.t, startTime, "istiod publishes its roots", func() bool {
		return c.Get("/api/v1/namespaces/"+namespace+"/configmaps/istio-ca-root-cert", &roots)
	})
	return roots.Data["root-cert.pem"]
}

// Token returns a token of a service account with the audience istio-ca.
func (c *Cluster) Token(namespace, account string) string {
	c.t.Helper()
	text := c.Create("/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token",
		"apiVersion: authentication.k8s.io/v1\nkind: TokenRequest\n"+
			"spec: {audiences: [istio-ca], expirationSeconds: 3600}")
	var request struct{ Status struct{ Token string } }
	if err := json.Unmarshal(text, &request); err != nil {
		c.t.Fatal(err)
	}
	return request.Status.Token
}
