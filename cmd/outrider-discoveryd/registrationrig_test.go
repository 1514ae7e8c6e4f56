package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// vm is a workload that registers itself with the token of a service account.
type vm struct {
	t     *testing.T
	token string
	node  *corev3.Node
}

func newVM(t *testing.T, token string, metadata map[string]any) *vm {
	t.Helper()
	all := map[string]any{"NAMESPACE": vmNamespace, "SERVICE_ACCOUNT": "web",
		"AUTO_REGISTER_GROUP": "web", "INSTANCE_IPS": "10.9.9.9,10.9.9.10", "ISTIO_VERSION": "1.29.0",
		"LABELS":       map[string]any{"tier": "vm", "istio-locality": "a.b.c"},
		"PROXY_CONFIG": map[string]any{"readinessProbe": map[string]any{"periodSeconds": 1}}}
	for key, value := range metadata {
		all[key] = value
	}
	fields, err := structpb.NewStruct(all)
	if err != nil {
		t.Fatal(err)
	}
	return &vm{t, token, &corev3.Node{Id: "sidecar~10.9.9.9~web.vm~vm.svc.cluster.local",
		Metadata: fields, Locality: &corev3.Locality{Region: "eu", Zone: "1"}}}
}

// vmStream is an open xDS stream of a vm.
type vmStream struct {
	ads  discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	conn *grpc.ClientConn
}

// open opens an xDS stream. It returns after the first response, or with the reason for a refusal.
func (v *vm) open(address string, secure bool) (*vmStream, error) {
	v.t.Helper()
	transport := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // a test
	if !secure {
		transport = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(transport))
	if err != nil {
		v.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(),
		"authorization", "Bearer "+v.token))
	v.t.Cleanup(cancel)
	timer := time.AfterFunc(time.Minute, cancel)
	defer timer.Stop()
	s := &vmStream{conn: conn}
	v.t.Cleanup(func() { _ = conn.Close() })
	s.ads, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx,
		grpc.WaitForReady(true))
	if err == nil {
		err = s.ads.Send(&discoveryv3.DiscoveryRequest{Node: v.node, TypeUrl: resource.ClusterType})
	}
	if err == nil {
		_, err = s.ads.Recv()
	}
	return s, err
}

// connect opens an xDS stream. A refusal fails the test.
func (v *vm) connect(address string) *vmStream {
	v.t.Helper()
	s, err := v.open(address, true)
	if err != nil {
		v.t.Fatalf("connect to %s: %v", address, err)
	}
	return s
}

// report reports the workload's health as an agent does; "" is healthy.
func (s *vmStream) report(problem string) {
	r := &discoveryv3.DiscoveryRequest{TypeUrl: resource.HealthType}
	if problem != "" {
		r.ErrorDetail = &statusv3.Status{Code: 500, Message: problem}
	}
	_ = s.ads.Send(r)
}

// end closes the connection without ending the stream first, as if the host had lost its power.
func (s *vmStream) end() { _ = s.conn.Close() }

// registrar is a running outrider-discoveryd with [registration].
type registrar struct {
	address, plaintext string
	file               string
	pid                int
}

// startRegistrar starts the program with [registration]. It appends the text more to the
// configuration.
func startRegistrar(t *testing.T, more string) registrar {
	t.Helper()
	folder := parts.ShortDir(t)
	authority := pkitest.NewAuthority(t, "server", nil)
	template := pkitest.LeafTemplate("server", time.Hour)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	chain, key := authority.Issue(t, template)
	write(t, filepath.Join(folder, "cert"), string(chain))
	write(t, filepath.Join(folder, "key"), string(key))
	r := registrar{address: fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)),
		plaintext: fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)),
		file:      filepath.Join(folder, "discoveryd.toml")}
	monitoring := parts.FreePort(t)
	write(t, r.file, fmt.Sprintf(`[paths]
state_dir = "state"
[listen]
plaintext = %q
tls = %q
monitoring = "127.0.0.1:%d"
[tls]
cert_file = "cert"
key_file = "key"
[registration]
enabled = true
grace_period = %q
%s`, r.plaintext, r.address, monitoring, vmGrace.String(), more))
	program, _ := start(t, r.file, monitoring)
	r.pid = program.Process.Pid
	return r
}

// permitted creates the objects in packaging/discoveryd/kubernetes-rbac.yaml. It returns a
// kubeconfig of the service account that they permit to register workloads.
func permitted(t *testing.T, c *cluster.Cluster) (kubeconfig string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "packaging", "discoveryd",
		"kubernetes-rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const namespace, account = "outrider-system", "outrider-discoveryd"
	rbac := "/apis/rbac.authorization.k8s.io/v1/"
	paths := map[string]string{"Namespace": "/api/v1/namespaces",
		"ServiceAccount":     "/api/v1/namespaces/" + namespace + "/serviceaccounts",
		"ClusterRole":        rbac + "clusterroles",
		"ClusterRoleBinding": rbac + "clusterrolebindings",
		"Role":               rbac + "namespaces/" + namespace + "/roles",
		"RoleBinding":        rbac + "namespaces/" + namespace + "/rolebindings"}
	for object := range strings.SplitSeq(string(text), "\n---\n") {
		_, kind, _ := strings.Cut(object, "\nkind: ")
		kind, _, _ = strings.Cut(kind, "\n")
		c.Create(paths[kind], object)
	}
	token := string(c.Create(paths["ServiceAccount"]+"/"+account+"/token",
		"apiVersion: authentication.k8s.io/v1\nkind: TokenRequest"))
	_, token, _ = strings.Cut(token, `"token":"`)
	token, _, _ = strings.Cut(token, `"`)
	kubeconfig = c.Kubeconfig(t, c.APIServerAddress(), token)
	if text, err = os.ReadFile(kubeconfig); err != nil {
		t.Fatal(err)
	}
	write(t, kubeconfig, strings.Replace(string(text), "user: u}",
		"user: u, namespace: "+namespace+"}", 1))
	return kubeconfig
}
