package debug

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
	"outrider.org/outrider/scripts/parts"
)

const objects = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  addresses: [10.1.0.1]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  http: [{headers: {request: {set: {authorization: hunter2}}},
    route: [{destination: {host: web.test}}]}]
---
kind: Unknown
`

const proxyID = "sidecar~10.0.0.9~vm.default~default.svc.cluster.local"

// world is a discovery server with TLS, and the certificates of its clients.
type world struct {
	debugger *Debugger
	address  string
	folder   string // contains root.pem, and NAME.pem and NAME.key for each service account
	pool     *x509.CertPool
}

func (w world) path(name string) string { return filepath.Join(w.folder, name) }

// start runs a server until the test ends. Only service account "operator" may request debug
// information.
func start(t *testing.T) world {
	t.Helper()
	w := world{folder: t.TempDir(), pool: x509.NewCertPool()}
	write := func(name string, text []byte) {
		if err := os.WriteFile(w.path(name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority := pkitest.NewAuthority(t, "root", nil)
	w.pool.AddCert(authority.Certificate)
	write("root.pem", pkitest.PEM(authority.Certificate))
	for _, name := range []string{"server", "operator", "web"} {
		chain, key := authority.Issue(t, pkitest.LeafTemplate(name, time.Hour))
		write(name+".pem", chain)
		write(name+".key", key)
	}
	mesh := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(mesh, []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := discovery.New(discovery.Options{Files: []string{mesh}})
	if err != nil {
		t.Fatal(err)
	}
	clients := auth.New(auth.Settings{Require: auth.RequireMTLS,
		DebugIdentities: []string{"spiffe://cluster.local/ns/default/sa/operator"}},
		func() []string { return []string{"cluster.local"} }, slog.New(slog.DiscardHandler))
	w.debugger = New(Options{Discovery: server, Authorize: clients.AuthorizeDebug,
		Sources: func() any { return []string{"files"} }})
	streams, err := xds.NewServer(xds.WithFleetLimits(xds.Options{Source: server,
		Admit:             clients.Admit,
		MayReceiveSecrets: clients.MayReceiveSecrets, AnswerDebugRequest: w.debugger.AnswerRequest}))
	if err != nil {
		t.Fatal(err)
	}
	w.debugger.options.XDS = streams
	own, err := tls.LoadX509KeyPair(w.path("server.pem"), w.path("server.key"))
	if err != nil {
		t.Fatal(err)
	}
	bound, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = bound.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- server.Run(ctx) }()
	go func() {
		ended <- streams.Serve(ctx, xds.LimitConnections(bound), grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{own}, ClientCAs: w.pool,
			ClientAuth: tls.VerifyClientCertIfGiven})))
	}()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return w
}

// proxy connects a proxy, and returns when the proxy has accepted its clusters.
func (w world) proxy(t *testing.T) {
	t.Helper()
	stream := w.stream(t, "web")
	node := &corev3.Node{Id: proxyID, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
		"CLUSTER_ID": structpb.NewStringValue("c1")}}}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node,
		TypeUrl: resource.ClusterType}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resource.ClusterType,
		ResponseNonce: answer.Nonce}); err != nil {
		t.Fatal(err)
	}
}

func (w world) stream(t *testing.T,
	name string) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(w.path(name+".pem"), w.path(name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient(w.address, grpc.WithTransportCredentials(
		credentials.NewTLS(&tls.Config{RootCAs: w.pool, ServerName: "server.test",
			Certificates: []tls.Certificate{pair}})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connection).
		DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// fetch requests debug information as a service account, in the way in which the agent does for
// "outrider proxy status --upstream".
func (w world) fetch(t *testing.T, account, name string) (string, error) {
	t.Helper()
	agent := relay.New(relay.Options{Conditions: condition.NewRegistry(), Logger: slog.New(
		slog.DiscardHandler), Upstream: relay.Upstream{
		Addresses: []string{w.address}, TLS: true,
		ServerName: "server.test", RootFile: w.path("root.pem"), Namespace: "default",
		ServiceAccount: account, ClusterID: "c1", ConnectTimeout: time.Minute,
		CertFile: w.path(account + ".pem"), KeyFile: w.path(account + ".key")}})
	text, err := agent.QueryDebug(t.Context(), name)
	return string(text), err
}

func TestDebug_AgentsRequests(t *testing.T) {
	w := start(t)
	w.proxy(t)
	var synced []synced
	parts.Eventually(t, time.Minute, "the proxy has accepted its clusters", func() bool {
		text, err := w.fetch(t, "operator", "syncz")
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(text), &synced); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return len(synced) == 1 && synced[0].ClusterSent != "" &&
			synced[0].ClusterAcked == synced[0].ClusterSent
	})
	if one := synced[0]; one.ProxyID != proxyID || one.ClusterID != "c1" ||
		one.ProxyType != "sidecar" {
		t.Errorf("%+v", one)
	}
	for name, says := range map[string][]string{
		"list":                           {"config_dump", "syncz"},
		"syncz?namespace=other":          {"[]"},
		"connections":                    {"spiffe://cluster.local/ns/default/sa/web", `"delta":true`},
		"config_dump?proxyID=" + proxyID: {"ClustersConfigDump", "outbound|80||web.test"},
		"config_dump?proxyID=vm.default": {"ListenersConfigDump", "RoutesConfigDump"},
		"edsz?proxyID=" + proxyID:        {"ClusterLoadAssignment", "10.0.0.1"},
		"ndsz?proxyID=vm.default":        {`"table":{"web.test":{"ips":["10.1.0.1"]}}`},
		"pushes":                         {`"xds"`, resource.ClusterType},
		"config":                         {`"problem_count":1`, `"sources":["files"]`},
		"registry":                       {"web.test", "10.1.0.1", `"number":80`},
		"config_dump?include_eds&proxyID=vm.default": {"EndpointsConfigDump"},
	} {
		text, err := w.fetch(t, "operator", name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, want := range says {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in %.2000s", name, want, text)
			}
		}
		if strings.Contains(text, "hunter2") || !json.Valid([]byte(text)) {
			t.Errorf("%s has a credential or is no JSON: %s", name, text)
		}
	}
	for name, says := range map[string]string{"config_dump?proxyID=x": "not connected",
		"unknown": "there are config,", "syncz?%zz": "invalid"} {
		if _, err := w.fetch(t, "operator", name); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.fetch(t, "web", "syncz"); err == nil ||
		!strings.Contains(err.Error(), "debug_identities") {
		t.Errorf("another identity: %v", err)
	}
}

// TestDebug_RequestsOfIstioctl requests the type URLs that only istioctl uses. The answers must be
// protobuf messages instead of JSON.
func TestDebug_RequestsOfIstioctl(t *testing.T) {
	w := start(t)
	w.proxy(t)
	for typeURL, name := range map[string]string{"syncz": "", "config_dump": "vm.default"} {
		stream := w.stream(t, "operator")
		request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xds.DebugType + "/" + typeURL,
			Node: &corev3.Node{Id: "sidecar~0.0.0.0~istioctl~default.svc.cluster.local"}}
		if name != "" {
			request.ResourceNamesSubscribe = []string{name}
		}
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if name != "" {
			if n := len(answer.Resources); n != 3 ||
				!strings.HasSuffix(answer.Resources[0].Resource.TypeUrl, "ClustersConfigDump") {
				t.Errorf("%d parts of a dump: %v", n, answer)
			}
			continue
		}
		var config statusv3.ClientConfig
		if len(answer.Resources) != 1 {
			t.Fatalf("%v", answer)
		}
		if err := answer.Resources[0].Resource.UnmarshalTo(&config); err != nil ||
			config.Node.Id != proxyID || len(config.GenericXdsConfigs) != 1 {
			t.Errorf("%v %v", err, &config)
		}
	}
}

func TestPage(t *testing.T) {
	w := start(t)
	for path, code := range map[string]int{"/debug/connections": http.StatusOK,
		"/debug/": http.StatusOK, "/debug/x": http.StatusNotFound,
		"/debug/edsz?proxyID=x": http.StatusNotFound, "/debug/syncz?%zz": http.StatusBadRequest} {
		recorder := httptest.NewRecorder()
		w.debugger.ServePage(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		if recorder.Code != code || code == http.StatusOK && !json.Valid(recorder.Body.Bytes()) {
			t.Errorf("%s: %d %s", path, recorder.Code, recorder.Body)
		}
	}
}

// unread is an http.ResponseWriter whose client never reads, so that Write blocks until the
// deadline.
type unread struct {
	http.ResponseWriter
	deadline time.Time
}

// SetWriteDeadline implements the method that http.ResponseController calls.
func (u *unread) SetWriteDeadline(deadline time.Time) error { u.deadline = deadline; return nil }

// Write implements io.Writer.
func (u *unread) Write([]byte) (int, error) {
	<-time.After(time.Until(u.deadline))
	return 0, os.ErrDeadlineExceeded
}

// TestPage_OfSlowReaderHoldsNobodyUp requests a page while the client of another page does not
// read. The response must be delayed by no more than readTime.
func TestPage_OfSlowReaderHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{})
		go d.ServePage(&unread{ResponseWriter: httptest.NewRecorder()},
			httptest.NewRequest(http.MethodGet, "/debug/list", nil))
		synctest.Wait()
		begun, recorder := time.Now(), httptest.NewRecorder()
		d.ServePage(recorder, httptest.NewRequest(http.MethodGet, "/debug/list", nil))
		if took := time.Since(begun); recorder.Code != http.StatusOK || took != readTime {
			t.Errorf("%d after %v", recorder.Code, took)
		}
	})
}
