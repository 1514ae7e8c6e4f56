package main_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts/signer"
	"outrider.org/outrider/scripts/rig"
)

// proxyless is an agent without Envoy, a real istiod, and a gRPC service in its mesh that requires
// mutual TLS.
type proxyless struct {
	*rig.Rig
	t       *testing.T
	clients chan string // SPIFFE IDs of the service's callers
}

func newProxyless(t *testing.T) *proxyless {
	t.Helper()
	p := &proxyless{t: t, Rig: rig.New(t, rig.Options{Race: true}), clients: make(chan string, 100)}
	root := pkitest.NewAuthority(t, "root", nil)
	istiod := signer.Start(t, root)
	istiod.WriteConfigFile(t, "echo.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: echo, namespace: default}
spec:
  hosts: [echo.test]
  subjectAltNames: ["spiffe://cluster.local/ns/default/sa/echo"]
  ports: [{number: 7070, name: grpc, protocol: GRPC}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {grpc: %d}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: echo, namespace: default}
spec:
  host: echo.test
  trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}
`, p.serve(root)))
	p.WriteFile("root.pem", string(pkitest.PEM(root.Certificate)))
	p.WriteFile("token", istiod.Token(t, time.Hour))
	p.SetTOML(p.configuration(istiod.Address) + "[envoy]\nenabled = false\nbinary = \"/none\"\n" +
		"[reload]\nwatch = false\n") // the test requests all reloads
	return p
}

func (p *proxyless) path(name string) string { return filepath.Join(p.Dir, name) }

func (p *proxyless) configuration(istiod string) string {
	return fmt.Sprintf(`[node]
service_account = "web"
[discovery]
address = %[1]q
auth = "mtls"
root_ca_file = %[2]q
[identity]
provider = "istiod"
token_file = %[3]q
output_dir = %[4]q
prov_cert_dir = %[4]q
[xds]
grpc_bootstrap_file = %[5]q
`, istiod, p.path("root.pem"), p.path("token"), p.path("certificates"), p.path("grpc.json"))
}

// serve starts the service with the identity spiffe://cluster.local/ns/default/sa/echo, and returns
// its port.
func (p *proxyless) serve(root *pkitest.Authority) int {
	p.t.Helper()
	chain, key := root.Issue(p.t, pkitest.LeafTemplate("echo", time.Hour))
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		p.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(root.Certificate)
	server := grpc.NewServer(grpc.Creds(grpccredentials.NewTLS(&tls.Config{ClientCAs: roots,
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert})),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo,
			handle grpc.UnaryHandler) (any, error) {
			from, _ := peer.FromContext(ctx)
			p.clients <- from.AuthInfo.(grpccredentials.TLSInfo).SPIFFEID.String()
			return handle(ctx, request)
		}))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	p.t.Cleanup(server.Stop)
	return listener.Addr().(*net.TCPAddr).Port
}

// call calls the service by its host in the mesh, as a gRPC client that uses the agent's xDS
// bootstrap.
func (p *proxyless) call() error {
	p.t.Helper()
	bootstrap, err := os.ReadFile(p.path("grpc.json"))
	if err != nil {
		return err
	}
	resolver, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	if err != nil {
		return err
	}
	both, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{
		FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient("xds:///echo.test:7070", grpc.WithResolvers(resolver),
		grpc.WithTransportCredentials(both))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	_, err = grpc_health_v1.NewHealthClient(connection).Check(ctx,
		&grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	return err
}

func TestProxyless_ClientCallsThroughIstiod(t *testing.T) {
	t.Parallel()
	p := newProxyless(t)
	daemon := p.StartReady()
	if err := p.call(); err != nil {
		t.Fatalf("call: %v\n%s", err, daemon.Output())
	}
	if got := <-p.clients; got != "spiffe://cluster.local/ns/default/sa/web" {
		t.Errorf("the service was called by %q", got)
	}
	var status api.Status
	p.RunOutriderJSON(&status, "status", "--json")
	if status.State != api.StateRunning || !status.Ready || len(status.Epochs) > 0 ||
		status.Envoy.Enabled || len(p.ProcessIDs("envoy")) > 0 {
		t.Errorf("status: %+v", status)
	}

	// A reload rewrites the gRPC bootstrap, and starts no epoch.
	config, err := os.ReadFile(p.path("conf.d/50-test.toml"))
	if err != nil {
		t.Fatal(err)
	}
	p.SetTOML(strings.Replace(string(config), "[node]\n",
		"[node]\nlabels = { app = \"web\" }\n", 1))
	if result := p.RunOutrider("reload"); result.ExitCode != 0 ||
		!strings.Contains(result.Stdout, "applied in place") {
		t.Errorf("reload: %+v\n%s", result, daemon.Output())
	}
	if text, err := os.ReadFile(p.path("grpc.json")); err != nil ||
		!strings.Contains(string(text), `"app": "web"`) {
		t.Errorf("after the reload: %v\n%s", err, text)
	}
	if err := p.call(); err != nil {
		t.Errorf("call after the reload: %v", err)
	}
	p.Signal(daemon.Process.Pid, syscall.SIGTERM)
	if code := daemon.Wait(t, 30*time.Second); code != 0 {
		t.Errorf("exit %d:\n%s", code, daemon.Output())
	}
}

// An agent that starts with [envoy] enabled = false ends the Envoy that the previous agent left
// running.
func TestProxyless_EndsTheEnvoyOfBefore(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	r.StartReady()
	r.KillAgent()
	r.SetTOML("[envoy]\nenabled = false\n")
	r.StartReady()
	if pids := r.ProcessIDs("envoy"); len(pids) > 0 {
		t.Errorf("Envoys run: %v\n%s", pids, r.Daemon().Output())
	}
}
