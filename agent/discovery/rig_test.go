package discovery_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bootstrap = `{
  "node": {"id": "%[1]s~127.0.0.1~vm.shop~shop.svc.cluster.local", "cluster": "test", "locality": {"region": "eu", "zone": "a"}, "metadata": {"NAMESPACE": "shop", "ISTIO_VERSION": "1.30.2", "STAGE": "test", "WORKLOAD_NAME": "edge-v1", "CLUSTER_ID": "Kubernetes", "INTERCEPTION_MODE": "NONE", "LABELS": {"app": "edge"}}},
  "admin": {"address": {"pipe": {"path": %[2]q}}},
  "layered_runtime": {"layers": [{"name": "outrider", "static_layer": {"re2.max_program_size.error_level": 32768, "tracing.opentelemetry.min_flush_spans": 1, "tracing.zipkin.min_flush_spans": 1}}]},
  "dynamic_resources": {
    "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]},
    "cds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"},
    "lds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
  },
  "static_resources": {"clusters": [%[4]s{
    "name": "xds", "type": "STATIC", "connect_timeout": "1s",
    "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": %[3]s}}]}]},
    "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
      "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}}
  }]}
}`

// envoy is a real Envoy that a discovery server configures.
type envoy struct {
	*parts.EnvoyProcess
	ads   *xds.Server
	nacks *refusals
}

// refusals records Envoy's refusals.
type refusals struct {
	mu  sync.Mutex
	all []string
}

func (*refusals) OnConnect(xds.Stream)                        {}
func (*refusals) OnDisconnect(xds.Stream, error)              {}
func (*refusals) OnPush(xds.Stream, xds.Push)                 {}
func (*refusals) OnAck(xds.Stream, string, string)            {}
func (*refusals) OnNackResolved(xds.Stream, string, []string) {}
func (r *refusals) OnNack(_ xds.Stream, refusal xds.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprintf("%s %v: %s", refusal.Type, refusal.Resources, refusal.Error))
}

// Addresses of the host, for proxies with interception.
const (
	capturedAddress  = "10.8.0.1"
	capturedAddress6 = "fd08::1"
)

// bootstrapOf returns the bootstrap of an Envoy of a kind: sidecar, router, or for a sidecar with
// interception REDIRECT, REDIRECT6 (IPv6 as well) or TPROXY.
func bootstrapOf(kind, admin, server string) string {
	dual := ""
	if kind == "REDIRECT6" {
		kind = "REDIRECT"
		dual = `"OUTRIDER_IPV6": "true", "INSTANCE_IPS": "` + capturedAddress6 + `", `
	}
	if kind != "REDIRECT" && kind != "TPROXY" {
		return fmt.Sprintf(bootstrap, kind, admin, server, "")
	}
	return strings.NewReplacer("~127.0.0.1~", "~"+capturedAddress+"~",
		`"INTERCEPTION_MODE": "NONE"`, dual+`"INTERCEPTION_MODE": "`+kind+`"`).
		Replace(fmt.Sprintf(bootstrap, "sidecar", admin, server, ""))
}

// startEnvoy runs an Envoy of a kind (see bootstrapOf), configured by a server, until the test
// ends.
func startEnvoy(t *testing.T, kind string, server *discovery.Server) *envoy {
	t.Helper()
	return startEnvoyWith(t, kind, server, func(bootstrap string) string { return bootstrap })
}

// startEnvoyWith runs an Envoy as startEnvoy does, with a changed bootstrap.
func startEnvoyWith(t testing.TB, kind string, server *discovery.Server,
	with func(bootstrap string) string) *envoy {
	t.Helper()
	directory := parts.ShortDir(t)
	nacks := &refusals{}
	ads, err := xds.NewServer(xds.Options{Source: server, Observer: nacks})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(directory, "xds.sock")
	listener, err := xds.Listen(xds.ListenOptions{Path: socket})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- ads.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	admin := filepath.Join(directory, "admin.sock")
	e := startEnvoyOn(t, admin, with(bootstrapOf(kind, admin, fmt.Sprintf(`{"pipe": {"path": %q}}`,
		socket))))
	e.ads, e.nacks = ads, nacks
	return e
}

// startEnvoyOn runs an Envoy with a bootstrap until the test ends. admin is the socket of its admin
// interface.
func startEnvoyOn(t testing.TB, admin, bootstrap string) *envoy {
	t.Helper()
	return &envoy{EnvoyProcess: parts.StartEnvoy(t, admin, bootstrap,
		"--file-flush-interval-msec", "100")}
}

// listens waits until Envoy has all its listeners.
func (e *envoy) listens(t testing.TB) {
	t.Helper()
	eventually(t, "Envoy has its listeners", func() (bool, string) {
		live, warming := e.Stat("listener_manager.workers_started"),
			e.Stat("listener_manager.total_listeners_warming")
		return live == 1 && warming == 0, fmt.Sprintf("workers %d, warming %d", live, warming)
	})
}

// eventually polls until a condition holds, for at most thirty seconds.
func eventually(t testing.TB, what string, holds func() (bool, string)) {
	t.Helper()
	parts.EventuallyWithObservation(t, time.Minute, what, holds)
}

// freePorts returns distinct ports that are free now.
func freePorts(t testing.TB, count int) []int {
	t.Helper()
	ports := make([]int, count)
	for i := range ports {
		ports[i] = parts.FreePort(t)
	}
	return ports
}

// echo is the JSON description of a request in a response of backend.
type echo struct {
	Backend string
	Host    string
	Path    string
	Query   string
	Proto   string
	Headers http.Header
}

// backend is an HTTP server whose responses describe the request. For a path below /status/ it
// responds with that status, for one below /delay/ after that time. A backend called bad responds
// to every request with 503, one called slow after 300 ms.
type backend struct {
	name  string
	seen  atomic.Int64
	asked sync.Map // set of the "host/path" of all requests so far
}

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.seen.Add(1)
	b.asked.Store(r.Host+r.URL.Path, true)
	status := http.StatusOK
	if text, ok := strings.CutPrefix(r.URL.Path, "/status/"); ok {
		_, _ = fmt.Sscan(text, &status)
	}
	delay := time.Duration(0)
	if b.name == "slow" {
		delay = 300 * time.Millisecond
	}
	if text, ok := strings.CutPrefix(r.URL.Path, "/delay/"); ok {
		delay, _ = time.ParseDuration(text)
	}
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return
	}
	if b.name == "bad" {
		status = http.StatusServiceUnavailable
	}
	b.annotate(r)
	w.Header().Set("x-backend", b.name)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(echo{Backend: b.name, Host: r.Host, Path: r.URL.Path,
		Query: r.URL.RawQuery, Proto: r.Proto, Headers: r.Header})
}

// serve serves the backend until the test ends, and returns the port. two makes it support only
// HTTP/2 without TLS.
func (b *backend) serve(t testing.TB, two bool) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := b.server()
	if two {
		server.Protocols = &http.Protocols{}
		server.Protocols.SetUnencryptedHTTP2(true)
	}
	return run(t, server, listener)
}

// run serves until the test ends and returns the port.
func run(t testing.TB, server *http.Server, listener net.Listener) int {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	if address, ok := listener.Addr().(*net.TCPAddr); ok {
		return address.Port
	}
	return 0
}

// serveTLS serves the backend with TLS.
func (b *backend) serveTLS(t testing.TB, certificate, key string) int {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0",
		&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert,
			NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	return run(t, b.server(), listener)
}

// echoTCP returns a port on which a server sends back every line, with its name before it.
func echoTCP(t testing.TB, name string) int {
	t.Helper()
	return serveTCP(t, func(connection net.Conn) {
		lines := bufio.NewScanner(connection) // a line may arrive in pieces
		for lines.Scan() {
			if _, err := io.WriteString(connection, name+":"+lines.Text()+"\n"); err != nil {
				return
			}
		}
	})
}

// certificate writes a self-signed certificate for *.test and names, and its key, and returns their
// paths.
func certificate(t testing.TB, names ...string) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1),
		Subject: pkix.Name{CommonName: "test"}, DNSNames: append(names, "*.test"),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth,
			x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	certificate, key = filepath.Join(directory, "cert.pem"), filepath.Join(directory, "key.pem")
	for path, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: der},
		key: {Type: "PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}
