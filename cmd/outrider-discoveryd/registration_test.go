package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	statusv3 "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

const (
	vmNamespace = "vm"
	vmEntry     = "web-10.9.9.9"
	vmGrace     = 3 * time.Second
	vmGroup     = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: vm}
spec:
  metadata: {labels: {app: web, tier: group}, annotations: {team: shop}}
  template: {serviceAccount: web, ports: {http: 8080}, weight: 3, labels: {app: t, from: t}}
`
)

// vm is a workload that registers itself with a token of a service account.
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

// vmStream is an open stream of a vm.
type vmStream struct {
	ads  discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	conn *grpc.ClientConn
}

// open opens a stream, and returns once the server has answered or refused.
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

// connect opens a stream that must not be refused.
func (v *vm) connect(address string) *vmStream {
	v.t.Helper()
	s, err := v.open(address, true)
	if err != nil {
		v.t.Fatalf("connect to %s: %v", address, err)
	}
	return s
}

// report reports the health as an agent does.
func (s *vmStream) report(problem string) {
	r := &discoveryv3.DiscoveryRequest{TypeUrl: resource.HealthType}
	if problem != "" {
		r.ErrorDetail = &statusv3.Status{Code: 500, Message: problem}
	}
	_ = s.ads.Send(r)
}

// end ends the stream as a host that loses its power: without a word.
func (s *vmStream) end() { _ = s.conn.Close() }

// registrar is a running program with [registration].
type registrar struct {
	address, plaintext string
	file               string
	pid                int
}

// startRegistrar starts the program with more tables in its configuration.
func startRegistrar(t *testing.T, more string) registrar {
	t.Helper()
	folder := parts.ShortDir(t)
	authority := pkitest.NewAuthority(t, "server", nil)
	template := pkitest.Leaf("server", time.Hour)
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

// permitted creates the objects of kubernetes-rbac.yaml, and returns the kubeconfig of the service
// account.
func permitted(t *testing.T, c *cluster.Cluster) (kubeconfig string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts.Root(), "packaging", "discoveryd",
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
	kubeconfig = c.Kubeconfig(t, c.Address(), token)
	if text, err = os.ReadFile(kubeconfig); err != nil {
		t.Fatal(err)
	}
	write(t, kubeconfig, strings.Replace(string(text), "user: u}", "user: u, namespace: "+namespace+"}",
		1))
	return kubeconfig
}

// TestRegistration runs two servers, and a real istiod, that register workloads in one API server.
func TestRegistration(t *testing.T) {
	c := cluster.Start(t)
	istiod, _ := c.Istiod("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD=" + vmGrace.String())
	c.Create("/api/v1/namespaces", "metadata: {name: vm}")
	for _, account := range []string{"web", "other"} {
		c.Create("/api/v1/namespaces/vm/serviceaccounts", "metadata: {name: "+account+"}")
	}
	r := &registrations{Cluster: c, istiod: istiod, token: c.Token(vmNamespace, "web")}
	tables := fmt.Sprintf("[auth]\nkubernetes_token_review = true\n[[source]]\n"+
		"type = \"kubernetes\"\nkubeconfig = %q\n", permitted(t, c))
	r.one, r.two = startRegistrar(t, tables), startRegistrar(t, tables)
	t.Run("refusals", r.testRefusals)
	t.Run("beside istiod", r.testBesideIstiod)
	t.Run("moves", r.testMoves)
	t.Run("dead server", r.testDeadServer)
}

type registrations struct {
	*cluster.Cluster
	istiod   string
	token    string
	one, two registrar
}

// gone waits until the entry was removed, and returns how long after a time.
func (r *registrations) gone(t *testing.T, since time.Time) time.Duration {
	t.Helper()
	parts.Eventually(t, time.Minute, "the entry is removed", func() bool {
		return r.Entry(vmNamespace, vmEntry) == nil
	})
	return time.Since(since)
}

func (r *registrations) testRefusals(t *testing.T) {
	refused := func(v *vm, secure bool, code codes.Code, want string) {
		t.Helper()
		address := r.one.plaintext
		if secure {
			address = r.one.address
		}
		_, err := v.open(address, secure)
		if status.Code(err) != code || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %v %q", err, code, want)
		}
	}
	web := newVM(t, r.token, nil)
	refused(web, true, codes.FailedPrecondition, "cannot find WorkloadGroup vm/web")
	r.Create("/apis/networking.istio.io/v1/namespaces/vm/workloadgroups", vmGroup)
	refused(web, false, codes.PermissionDenied, "registration needs an identity")
	refused(newVM(t, r.Token(vmNamespace, "other"), map[string]any{"SERVICE_ACCOUNT": "other"}), true,
		codes.PermissionDenied, `WorkloadEntry vm/web-10.9.9.9 is of service account "web"`)
	refused(newVM(t, r.token, map[string]any{"NETWORK": "not a name"}), true, codes.InvalidArgument,
		"is not a valid name of a WorkloadEntry")
	if e := r.Entry(vmNamespace, vmEntry); e != nil {
		t.Errorf("a refused client has registered %+v", e)
	}
	if text := logOf(r.one.file); !strings.Contains(text, "refused registration") {
		t.Errorf("no line about refusals in:\n%s", text)
	}
}

var volatile = regexp.MustCompile(`"(uid|resourceVersion|creationTimestamp|lastProbeTime|` +
	`lastTransitionTime|istio.io/connectedAt|istio.io/disconnectedAt|` +
	`istio.io/workloadController)": ?"[^"]*"`)

// object returns an entry as JSON, without what differs between two registrations.
func (r *registrations) object(t *testing.T) string {
	t.Helper()
	var o map[string]any
	if !r.Get("/apis/networking.istio.io/v1/namespaces/vm/workloadentries/"+vmEntry, &o) {
		t.Fatal("there is no entry")
	}
	meta := o["metadata"].(map[string]any)
	delete(meta, "managedFields")
	delete(meta, "generation")
	text, err := json.MarshalIndent(o, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return volatile.ReplaceAllString(string(text), `"$1": "…"`)
}

// testBesideIstiod compares the states of an entry that istiod and this program have written, and
// has each take the entry over from the other.
func (r *registrations) testBesideIstiod(t *testing.T) {
	web := newVM(t, r.token, nil)
	states := func(address string) (all []string) {
		t.Helper()
		s := web.connect(address)
		all = append(all, "registered", r.object(t))
		for _, problem := range []string{"", "exit status 1", ""} {
			s.report(problem)
			want := "True"
			if problem != "" {
				want = "False " + problem
			}
			r.AwaitEntry(t, time.Minute, vmNamespace, vmEntry, want)
			all = append(all, want, r.object(t))
		}
		begun := time.Now()
		s.end()
		parts.Eventually(t, time.Minute, "the entry is disconnected", func() bool {
			e := r.Entry(vmNamespace, vmEntry)
			return e != nil && e.ConnectedAt() == ""
		})
		all = append(all, "disconnected", r.object(t))
		t.Logf("%s: removed %v after the end of the stream", address, r.gone(t, begun))
		return all
	}
	want := states(r.istiod)
	if diff := cmp.Diff(want, states(r.one.address)); diff != "" {
		t.Errorf("(-istiod +this program):\n%s", diff)
	}

	s := web.connect(r.istiod)
	s.report("")
	entry := r.AwaitEntry(t, time.Minute, vmNamespace, vmEntry, "True")
	seen := r.WatchEntry(vmNamespace, vmEntry, cluster.Entry.Identity)
	for _, address := range []string{r.one.address, r.istiod, r.two.address, r.istiod} {
		controller := r.Entry(vmNamespace, vmEntry).Controller()
		next := web.connect(address)
		next.report("")
		s.end()
		s = next
		parts.Eventually(t, time.Minute, "another server has the entry", func() bool {
			e := r.Entry(vmNamespace, vmEntry)
			return e != nil && e.Controller() != controller && e.ConnectedAt() != ""
		})
	}
	<-time.After(vmGrace + time.Second) // nothing happens
	if diff := cmp.Diff([]string{entry.Metadata.UID + " True"}, seen()); diff != "" {
		t.Errorf("states of the entry (-want +got):\n%s", diff)
	}
	begun := time.Now()
	s.end()
	r.gone(t, begun)
}

// testMoves moves a workload between two servers: its entry stays.
func (r *registrations) testMoves(t *testing.T) {
	web := newVM(t, r.token, nil)
	s := web.connect(r.one.address)
	s.report("")
	entry := r.AwaitEntry(t, time.Minute, vmNamespace, vmEntry, "True")
	seen := r.WatchEntry(vmNamespace, vmEntry, cluster.Entry.Identity)
	for i := range 20 {
		address := []string{r.two.address, r.one.address}[i%2]
		if i%4 < 2 { // the new stream begins before the old one ends, or after it
			next := web.connect(address)
			s.end()
			s = next
		} else {
			s.end()
			s = web.connect(address)
		}
		s.report("")
	}
	<-time.After(vmGrace + 2*time.Second) // nothing happens
	if diff := cmp.Diff([]string{entry.Metadata.UID + " True"}, seen()); diff != "" {
		t.Errorf("states of the entry (-want +got):\n%s", diff)
	}
	if e := r.Entry(vmNamespace, vmEntry); e == nil || e.ConnectedAt() == "" {
		t.Errorf("the entry is not connected: %+v", e)
	}
	begun := time.Now()
	s.end()
	t.Logf("removed %v after the end of the stream", r.gone(t, begun))
}

// testDeadServer kills a server and a workload of it at the same moment: the other server removes
// the entry. A workload that moves meanwhile stays.
func (r *registrations) testDeadServer(t *testing.T) {
	web := newVM(t, r.token, nil)
	moving := newVM(t, r.token, map[string]any{"INSTANCE_IPS": "10.9.9.20"})
	s := web.connect(r.one.address)
	moving.connect(r.one.address)
	seen := r.WatchEntry(vmNamespace, "web-10.9.9.20", cluster.Entry.Identity)
	begun := time.Now()
	if err := syscall.Kill(r.one.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.end()
	moving.connect(r.two.address)
	took := r.gone(t, begun)
	t.Logf("removed %v after server and workload were killed", took)
	if took < vmGrace-time.Second {
		t.Errorf("removed after %v, with a grace period of %v", took, vmGrace)
	}
	parts.Eventually(t, time.Minute, "the removal is logged", func() bool {
		return strings.Contains(logOf(r.two.file), `server_lost`)
	})
	if got := seen(); len(got) != 1 {
		t.Errorf("states of the entry of the workload that moved: %q", got)
	}
}
