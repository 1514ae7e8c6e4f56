package systemtest

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// fleetMesh has the service web.test, whose endpoints are the workloads registered for
// WorkloadGroup web. They accept only requests with the client certificate of service account
// client.
var fleetMesh = []meshObject{
	{"workloadgroups", `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: vm}
spec:
  metadata: {labels: {app: web}}
  template: {serviceAccount: web, ports: {http: 8080, tcp: 8081}}
`},
	{"serviceentries", `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: vm}
spec:
  hosts: [web.test]
  addresses: [240.240.0.10]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  - {number: 81, name: tcp, protocol: TCP, targetPort: 8081}
  workloadSelector: {labels: {app: web}}
`},
	{"peerauthentications", `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: vm}
spec: {mtls: {mode: STRICT}}
`},
	{"authorizationpolicies", `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: client, namespace: vm}
spec:
  selector: {matchLabels: {app: web}}
  rules: [{from: [{source: {principals: [cluster.local/ns/vm/sa/client]}}]}]
`},
}

// meshObject is an Istio object in YAML, with the plural resource name that the API server's path
// needs.
type meshObject struct{ resource, text string }

// fleet is a mesh of two machines with a real control plane outside of them: server is registered
// and runs the application, client calls it. Their networks exist outside of the machines, so they
// survive reboots.
type fleet struct {
	t              *testing.T
	cluster        *cluster.Cluster
	istiod         string // address of istiod
	server, client *Host
	address        string // address of server
	away           []func()
	networks       [2]*parts.OtherHost
}

// newFleet starts a control plane, whose istiod has additional environment variables, and boots
// both machines.
func newFleet(t *testing.T, environment ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, cluster: cluster.Start(t)}
	f.cluster.Create("/api/v1/namespaces", "metadata: {name: vm}")
	for _, account := range []string{"web", "client"} {
		f.cluster.Create("/api/v1/namespaces/vm/serviceaccounts", "metadata: {name: "+account+"}")
	}
	f.create(fleetMesh...)
	f.istiod, _ = f.cluster.StartIstiod(environment...)
	f.networks[0] = parts.NewOtherHost(t)
	f.networks[0].RunOn(t, func() { f.networks[1] = parts.NewOtherHost(t) })
	f.address = f.networks[1].Peer
	f.connect()
	f.server = f.boot(0, "web", "workload_group = \"web\"\n", `[envoy]
termination_drain_duration = "4s"
[capture]
mode = "redirect"
inbound_ports = [8080, 8081]
[health]
unit = "web.service"
period = "200ms"
`)
	f.client = f.boot(1, "client", "", "[capture]\nmode = \"redirect\"\n")
	f.client.RunScript("ip route add default via " + f.address)
	f.server.startApplication("web")
	return f
}

// startApplication enables and starts web.service, an application that responds with name.
func (h *Host) startApplication(name string) {
	h.t.Helper()
	h.WriteText("/etc/systemd/system/web.service", `[Service]
Type=exec
ExecStart=/opt/programs/backend -name `+name+` -http 0.0.0.0:8080 -tcp 0.0.0.0:8081
[Install]
WantedBy=multi-user.target
`)
	h.RunScript("systemctl daemon-reload; systemctl enable --now web.service")
}

// create creates objects in namespace vm.
func (f *fleet) create(objects ...meshObject) {
	f.t.Helper()
	for _, o := range objects {
		group := strings.Fields(o.text)[1] // apiVersion, for example security.istio.io/v1
		f.cluster.Create("/apis/"+group+"/namespaces/vm/"+o.resource, o.text)
	}
}

// boot boots machine n of the fleet and installs Outrider in it, with a token of the given service
// account. node has more keys of [node], and more has more sections of the configuration.
func (f *fleet) boot(n int, account, node, more string) *Host {
	f.t.Helper()
	h := newHost(f.t, machine.Options{NetworkNamespace: f.networks[n].Namespace()})
	h.WriteText("/etc/outrider/root.pem", f.cluster.IstiodRootCertificates("vm"))
	h.WriteText("/etc/outrider/token", f.cluster.Token("vm", account))
	h.WriteText("/etc/outrider/conf.d/60-fleet.toml", `[node]
ip = "`+[]string{f.address, f.networks[1].Address}[n]+`"
namespace = "vm"
service_account = "`+account+`"
`+node+`[discovery]
address = "`+f.networks[n].Peer+`:15012"
root_ca_file = "/etc/outrider/root.pem"
server_name = "`+cluster.IstiodServerName+`"
[identity]
provider = "istiod"
token_file = "/etc/outrider/token"
`+more)
	return h
}

// connect makes istiod reachable from each machine, on port 15012 at the other end of the machine's
// link.
func (f *fleet) connect() {
	f.t.Helper()
	listen := func(n int) func() {
		return func() {
			listener, err := net.Listen("tcp", f.networks[n].Peer+":15012")
			if err != nil {
				f.t.Fatal(err)
			}
			f.away = append(f.away, parts.ForwardConnections(f.t, listener, f.istiod))
		}
	}
	listen(0)()
	f.networks[0].RunOn(f.t, listen(1))
}

// start starts the agents and waits until the server is registered and a request of the client to
// it succeeds.
func (f *fleet) start() {
	f.t.Helper()
	for _, h := range []*Host{f.server, f.client} {
		h.MustRun(f.t, "systemctl", "start", "outrider.service")
	}
	f.await("True")
	f.answers("200")
}

// await waits until the health in the server's WorkloadEntry, for example "True" or "False the
// proxy drains", begins with prefix.
func (f *fleet) await(prefix string) *cluster.WorkloadEntry {
	f.t.Helper()
	return f.cluster.AwaitWorkloadEntryHealth(f.t, 20*time.Second, "vm", "web-"+f.address, prefix)
}

// call sends a request from the client to web.test and returns the body with the status code
// appended.
func (f *fleet) call(path string) string {
	return f.client.call("web.test", "240.240.0.10", path)
}

// call sends a request to a service at an address and returns the body with the status code
// appended, or the error.
func (h *Host) call(service, address, path string) string {
	out, err := h.Run(h.t.Context(), "curl", "-s", "-m", "5", "-w", "%{http_code}",
		"--resolve", service+":80:"+address, "http://"+service+"/"+path)
	if err != nil {
		return err.Error()
	}
	return out
}

// answers waits until a request of the client to the service is answered with a status code.
func (f *fleet) answers(code string) {
	f.t.Helper()
	f.client.Eventually(time.Minute, "the client receives "+code, func() bool {
		return strings.HasSuffix(f.call(""), code)
	})
}

// failures sends requests from the client to the service until stop is called. stop returns the
// failed ones: those answered neither by the application nor with "no healthy upstream", the answer
// of the client's Envoy while the server is not healthy.
func (f *fleet) failures() (stop func() []string) {
	end := make(chan struct{})
	var group sync.WaitGroup
	var failed []string
	group.Go(func() {
		for {
			answer := f.call("")
			if !strings.HasPrefix(answer, "web answers ") &&
				!strings.HasPrefix(answer, "no healthy upstream") {
				failed = append(failed, answer)
			}
			select {
			case <-end:
				return
			default:
			}
		}
	})
	return func() []string { close(end); group.Wait(); return failed }
}

// mutual waits until a request is authenticated by the certificates of both machines. A connection
// that the server's Envoy accepted before istiod sent the inbound listener with mutual TLS stays
// unauthenticated until the previous listener has drained.
func (f *fleet) mutual() {
	f.t.Helper()
	f.server.Eventually(2*time.Minute, "both certificates are used", func() bool {
		got := f.call("headers")
		return strings.Contains(got, "By=spiffe://cluster.local/ns/vm/sa/web;") &&
			strings.Contains(got, "URI=spiffe://cluster.local/ns/vm/sa/client")
	})
}

// A machine joins the mesh, serves another one with mutual TLS, and reports the health of its
// application. When it drains or stops, it first reports that it is unhealthy, so no request fails.
func TestFleet_JoinsServesAndLeaves(t *testing.T) {
	t.Parallel()
	f := newFleet(t, "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD=2s")
	f.client.MustRun(t, "systemctl", "start", "outrider.service")
	f.client.Eventually(time.Minute, "the client captures", func() bool {
		return f.client.Status().Capture == "on"
	})
	failures := f.failures()
	f.start()
	if failed := failures(); len(failed) > 0 {
		t.Errorf("%d requests failed when the server joined: %q", len(failed), failed)
	}
	// After the registration of a workload, istiod often sends the workload's inbound listener only
	// with the next full push. A new service causes one.
	f.create(meshObject{"serviceentries", `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: push, namespace: vm}
spec:
  hosts: [push.test]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
`})
	f.mutual()
	if code, err := f.client.Run(t.Context(), "runuser", "-u", "outrider-envoy", "--", "curl", "-s",
		// connections of this user are not captured
		"-m", "5", "http://"+f.address+":8080/"); err == nil {
		t.Errorf("the server accepts a request without TLS: %s", code)
	}
	if e := f.await("True"); e.Metadata.Annotations["istio.io/autoRegistrationGroup"] != "web" ||
		e.Metadata.Labels["app"] != "web" {
		t.Errorf("%+v", e)
	}

	f.server.RunScript("systemctl stop web.service")
	f.await("False web.service is inactive")
	f.answers("503")
	f.server.RunScript("systemctl start web.service")
	f.await("True")
	f.answers("200")

	failures = f.failures()
	f.server.RunScript("outrider drain")
	f.await("False the proxy drains")
	f.answers("503")
	f.server.RunScript("outrider undrain")
	f.await("True")
	f.answers("200")
	if failed := failures(); len(failed) > 0 {
		t.Errorf("%d requests failed when the server drained: %q", len(failed), failed)
	}

	slow := make(chan string)
	go func() { slow <- f.call("sleep/3s") }()
	f.server.Eventually(time.Minute, "the slow request has arrived", func() bool {
		return f.server.RunScript("ss -Htn state established 'sport = :8080' | wc -l") != "0"
	})
	failures = f.failures()
	f.server.RunScript("systemctl stop --no-block outrider.service")
	f.await("False the proxy is stopping")
	f.answers("503")
	if state := f.server.Property("outrider.service", "ActiveState"); state != "deactivating" {
		t.Errorf("the unit is %s when the server has left", state)
	}
	if failed := failures(); len(failed) > 0 {
		t.Errorf("%d requests failed when the server left: %q", len(failed), failed)
	}
	if got := <-slow; !strings.HasSuffix(got, "200") {
		t.Errorf("a request in progress ended with %s", got)
	}
	f.server.Eventually(time.Minute, "istiod removes the WorkloadEntry", func() bool {
		return f.cluster.WorkloadEntry("vm", "web-"+f.address) == nil
	})
	if state := f.server.Property("outrider.service", "ActiveState"); state != "inactive" {
		t.Errorf("the unit is %s", state)
	}
	if left := f.server.RunScript("nft list ruleset"); left != "" {
		t.Errorf("left: %s", left)
	}
	if full() {
		f.besidePilotAgent()
	}
}
