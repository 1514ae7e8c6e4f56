package systemtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// joinedGrace is how long the server of a joinedFleet keeps the registration of a workload whose
// connection is lost.
const joinedGrace = 3 * time.Second

// joinedLog is the access log of each host's Envoy.
const joinedLog = "/var/log/outrider/access.log"

// joinedMeshConfig is the MeshConfig of a joinedFleet.
const joinedMeshConfig = "accessLogFile: " + joinedLog + "\n"

// joinedMesh has two services. Both hosts register as endpoints of web.test, which clients call on
// port 7080 of their own host. plain.test, on port 7081, is the application of the client's own
// host, without TLS.
const joinedMesh = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web-v1, namespace: vm}
spec:
  metadata: {labels: {app: web, version: v1}}
  template: {serviceAccount: web, ports: {http: 8443}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web-v2, namespace: vm}
spec:
  metadata: {labels: {app: web, version: v2}}
  template: {serviceAccount: web, ports: {http: 8443}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: vm}
spec:
  hosts: [web.test]
  addresses: [127.0.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 7080, name: http, protocol: HTTP, targetPort: 8443}]
  workloadSelector: {labels: {app: web}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: plain, namespace: vm}
spec:
  hosts: [plain.test]
  addresses: [127.0.0.1]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 7081, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: 8080}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: vm}
spec:
  ingress: [{port: {number: 8443, name: http, protocol: HTTP}, defaultEndpoint: "127.0.0.1:8080"}]
  egress: [{hosts: ["./*"]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: vm}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: vm}
spec:
  host: web.test
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
`

// routing is a VirtualService that sends requests for web.test to a destination, %s, with ten
// retries. With the default of two, one request in twenty would fail while one of the two hosts is
// dead: Envoy would choose that host for all three attempts, because it has the fewest active
// requests.
const routing = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: vm}
spec:
  hosts: [web.test]
  http:
  - route: [{destination: {%s}}]
    retries: {attempts: 10, retryOn: "connect-failure,refused-stream,unavailable,cancelled,503"}
`

// joinedHealth makes the state of gate.service the health of the workload. This unit serves
// nothing, so an unhealthy host still answers requests.
const joinedHealth = "[health]\nunit = \"gate.service\"\nperiod = \"200ms\"\n"

// joinedFleet is a mesh of two machines on which nothing but Outrider's package is installed.
// middle, a network namespace, connects their networks with each other and with the server.
type joinedFleet struct {
	t      *testing.T
	middle *parts.OtherHost
	server fleetServer
	hosts  [2]*joinedHost
}

// fleetServer is a server that hosts join, outrider-discoveryd or istiod, with its registry, Consul
// or an API server. Hosts reach the server at the address of their gateway.
type fleetServer interface {
	// invite returns a token of service account web, and the root certificates to verify the server
	// with.
	invite() (token, roots string)
	// entries returns the WorkloadEntries of all registered workloads, in JSON.
	entries() ([]string, error)
	// route replaces the VirtualService for web.test, which routing describes.
	route(object string)
	// kill kills the server's process and starts another one, and returns the name by which
	// WorkloadEntries refer to the new process.
	kill() (instance string)
	// outages returns functions, each of which stops or kills the registry and starts it again.
	outages() []func()
	// rotation returns the steps that replace the CA. After the first step both the old and the new
	// CA are trusted, after the second the new one signs, after the third only the new one is
	// trusted.
	rotation() []func()
	// away stops the server and the registry, calls do, and starts them again.
	away(do func())
}

// joinedHost is a machine of a joinedFleet, with an application that responds with the host's name.
type joinedHost struct {
	*Host
	name, address string // address of the machine
	gateway       string // address of the server, as the machine reaches it
}

// newJoinedFleet boots both machines, without a server.
func newJoinedFleet(t *testing.T) *joinedFleet {
	t.Helper()
	f := &joinedFleet{t: t, middle: parts.NewOtherHost(t)}
	var networks [2]*parts.OtherHost
	f.middle.RunOn(t, func() {
		for i := range networks {
			networks[i] = parts.NewOtherHost(t)
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	})
	for i, network := range networks {
		h := &joinedHost{Host: f.boot(network), name: fmt.Sprintf("v%d", i+1),
			address: network.Address, gateway: network.Peer}
		h.RunScript("ip route add default via " + h.gateway)
		// web.service starts before the agent, so it stops after the agent has left the mesh.
		h.WriteText("/etc/systemd/system/web.service", `[Unit]
Before=outrider.service
[Service]
ExecStart=/opt/programs/backend -name `+h.name+` -http 127.0.0.1:8080
[Install]
WantedBy=multi-user.target
`)
		h.WriteText("/etc/systemd/system/gate.service",
			"[Service]\nExecStart=/bin/sleep infinity\n"+
				"[Install]\nWantedBy=multi-user.target\n")
		h.RunScript("systemctl daemon-reload; systemctl enable --now web.service gate.service")
		f.hosts[i] = h
	}
	return f
}

// boot boots a machine in a network, without Outrider, but with the Debian packages to install.
// more lists more directories to mount in it.
func (f *joinedFleet) boot(network *parts.OtherHost, more ...string) *Host {
	f.t.Helper()
	h := &Host{t: f.t,
		Machine: machine.BootForTest(f.t, machine.Options{NetworkNamespace: network.Namespace(),
			BindMounts: append(more, debs(f.t)+":"+debPlace, rig.Build(f.t, false).Dir+":"+programs,
				filepath.Dir(parts.EnvoyPath(f.t))+":"+envoy)})}
	h.RunScript("rm -f /usr/sbin/policy-rc.d /usr/local/bin/envoy /usr/bin/envoy")
	f.t.Cleanup(func() {
		if f.t.Failed() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			log, _ := h.Run(ctx, "journalctl", "--no-pager", "-o", "short-monotonic", "-n", "120",
				"-u", "outrider*", "-u", "consul*")
			f.t.Logf("the journal of %s:\n%s", h.Name(), log)
		}
	})
	return h
}

// route makes destination the destination of requests for web.test.
func (f *joinedFleet) route(destination string) {
	f.t.Helper()
	f.server.route(fmt.Sprintf(routing, destination))
}

// invite writes to a machine the files that an operator copies to it before the join: a token and
// the root certificates.
func (f *joinedFleet) invite(h *joinedHost) {
	f.t.Helper()
	token, roots := f.server.invite()
	h.WriteText("/root/token", token)
	h.WriteText("/root/root.pem", roots)
}

// join installs the package and Envoy and joins the mesh, as a user does, and returns the number of
// commands that this takes.
func (h *joinedHost) join() (commands int) {
	h.t.Helper()
	for _, command := range []string{
		fmt.Sprintf("dpkg -i %s/%s/outrider_%[2]s-1_amd64.deb", debPlace, oldVersion),
		"outrider envoy install --file /opt/envoy/envoy",
		h.joinCommand(),
	} {
		h.RunScript(command)
		commands++
	}
	return commands
}

func (h *joinedHost) joinCommand() string {
	return "outrider join " + h.gateway + " --token /root/token --ca /root/root.pem --group vm/web-" +
		h.name
}

// get sends a request for a service of the mesh to a port of this host, and returns the body with
// the status code appended, or the error.
func (h *joinedHost) get(host string, port int, path string) string {
	out, err := h.Run(h.t.Context(), "curl", "-s", "-m", "5", "-w", "%{http_code}", "-H",
		"Host: "+host, fmt.Sprintf("http://127.0.0.1:%d/%s", port, path))
	if err != nil {
		return err.Error()
	}
	return out
}

// reaches waits until the application of the host with this name answers a request of h, and the
// certificates of both hosts have authenticated it.
func (h *joinedHost) reaches(name string) {
	h.t.Helper()
	h.Eventually(time.Minute, "an answer of "+name, func() bool {
		got := h.get("web.test", 7080, "headers")
		return strings.HasPrefix(got, name+" answers ") &&
			strings.Contains(got, "By=spiffe://cluster.local/ns/vm/sa/web;") &&
			strings.Contains(got, "URI=spiffe://cluster.local/ns/vm/sa/web")
	})
}

// answering sends requests for web.test and returns the name of the host whose application answers
// them: v1, v2, or "both".
func (h *joinedHost) answering() string {
	names := map[string]bool{}
	for range 16 {
		name, _, _ := strings.Cut(h.get("web.test", 7080, ""), " answers ")
		names[name] = true
	}
	switch {
	case len(names) == 2 && names["v1"] && names["v2"]:
		return "both"
	case len(names) == 1:
		for name := range names {
			return name
		}
	}
	return fmt.Sprint(names)
}

// awaitAnswering waits until answering returns names: v1, v2 or both.
func (h *joinedHost) awaitAnswering(names string) {
	h.t.Helper()
	parts.EventuallyWithObservation(h.t, joinedLimit, names+" answer", func() (bool, string) {
		got := h.answering()
		return got == names, got
	})
}
