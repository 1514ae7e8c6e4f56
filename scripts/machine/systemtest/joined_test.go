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

// joinedGrace is the time after which the server of a joinedFleet removes a lost workload.
const joinedGrace = 3 * time.Second

// joinedLog is the access log of the Envoys.
const joinedLog = "/var/log/outrider/access.log"

// joinedMeshConfig is the MeshConfig.
const joinedMeshConfig = "accessLogFile: " + joinedLog + "\n"

// joinedMesh has the service web.test, for which both hosts register, on port 7080 of each host, and
// the service plain.test, the application of the host itself, without TLS.
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

// routing sends requests for web.test to a destination. It repeats attempts to connect ten times:
// of the two by default, one in twenty requests makes all three at a dead one of two hosts, which has
// the fewest active requests.
const routing = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: vm}
spec:
  hosts: [web.test]
  http:
  - route: [{destination: {%s}}]
    retries: {attempts: 10, retryOn: "connect-failure,refused-stream,unavailable,cancelled,503"}
`

// joinedHealth reports the state of a unit that answers nothing.
const joinedHealth = "[health]\nunit = \"gate.service\"\nperiod = \"200ms\"\n"

// joinedFleet is a mesh of two machines that have only the package. A network in the middle forwards
// between them.
type joinedFleet struct {
	t      *testing.T
	middle *parts.OtherHost
	server fleetServer
	hosts  [2]*joinedHost
}

// fleetServer is a server that hosts join, with its registry. Its address is their gateway.
type fleetServer interface {
	// invite returns a token for service account web, and the roots of the server's certificate.
	invite() (token, roots string)
	// entries returns the WorkloadEntries of all registered workloads, in JSON.
	entries() ([]string, error)
	// route replaces the object of routing.
	route(object string)
	// kill kills the server and starts the next instance, whose name in WorkloadEntries it returns.
	kill() (instance string)
	// outages returns functions that each have the registry away for some time.
	outages() []func()
	// rotation returns the steps from the old authority to a new one: both are trusted, the new one
	// signs, only the new one is trusted.
	rotation() []func()
	// away calls do while server and registry are away.
	away(do func())
}

// joinedHost is a machine of a joinedFleet, with an application that answers with its name.
type joinedHost struct {
	*Host
	name, address string // address of the machine
	gateway       string // address of the server, as the machine reaches it
}

// newJoinedFleet boots the machines.
func newJoinedFleet(t *testing.T) *joinedFleet {
	t.Helper()
	f := &joinedFleet{t: t, middle: parts.NewOtherHost(t)}
	var networks [2]*parts.OtherHost
	f.middle.Do(t, func() {
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
		h.Script("ip route add default via " + h.gateway)
		// it stops after the agent has left the mesh
		h.Write("/etc/systemd/system/web.service", `[Unit]
Before=outrider.service
[Service]
ExecStart=/opt/programs/backend -name `+h.name+` -http 127.0.0.1:8080
[Install]
WantedBy=multi-user.target
`)
		h.Write("/etc/systemd/system/gate.service", "[Service]\nExecStart=/bin/sleep infinity\n"+
			"[Install]\nWantedBy=multi-user.target\n")
		h.Script("systemctl daemon-reload; systemctl enable --now web.service gate.service")
		f.hosts[i] = h
	}
	return f
}

// boot boots a machine that can install the packages.
func (f *joinedFleet) boot(network *parts.OtherHost, more ...string) *Host {
	f.t.Helper()
	h := &Host{t: f.t,
		Machine: machine.BootForTest(f.t, machine.Options{Network: network.Namespace(),
			Bind: append(more, debs(f.t)+":"+debPlace, rig.Build(f.t, false).Dir+":"+programs,
				filepath.Dir(parts.Envoy(f.t))+":"+envoy)})}
	h.Script("rm -f /usr/sbin/policy-rc.d /usr/local/bin/envoy /usr/bin/envoy")
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

// route replaces the destination of requests for web.test.
func (f *joinedFleet) route(destination string) {
	f.t.Helper()
	f.server.route(fmt.Sprintf(routing, destination))
}

// invite gives a machine what an operator copies to it: a token, and the root certificates.
func (f *joinedFleet) invite(h *joinedHost) {
	f.t.Helper()
	token, roots := f.server.invite()
	h.Write("/root/token", token)
	h.Write("/root/root.pem", roots)
}

// join installs the package and joins, as a user does, and returns the number of commands.
func (h *joinedHost) join() (commands int) {
	h.t.Helper()
	for _, command := range []string{
		fmt.Sprintf("dpkg -i %s/%s/outrider_%[2]s-1_amd64.deb", debPlace, oldVersion),
		"outrider envoy install --file /opt/envoy/envoy",
		h.joinCommand(),
	} {
		h.Script(command)
		commands++
	}
	return commands
}

func (h *joinedHost) joinCommand() string {
	return "outrider join " + h.gateway + " --token /root/token --ca /root/root.pem --group vm/web-" +
		h.name
}

// get sends a request for a service of the mesh, and returns the body and the status code.
func (h *joinedHost) get(host string, port int, path string) string {
	out, err := h.Run(h.t.Context(), "curl", "-s", "-m", "5", "-w", "%{http_code}", "-H",
		"Host: "+host, fmt.Sprintf("http://127.0.0.1:%d/%s", port, path))
	if err != nil {
		return err.Error()
	}
	return out
}

// reaches waits until a host's application answers, authenticated by the certificates of both.
func (h *joinedHost) reaches(name string) {
	h.t.Helper()
	h.Eventually(time.Minute, "an answer of "+name, func() bool {
		got := h.get("web.test", 7080, "headers")
		return strings.HasPrefix(got, name+" answers ") &&
			strings.Contains(got, "By=spiffe://cluster.local/ns/vm/sa/web;") &&
			strings.Contains(got, "URI=spiffe://cluster.local/ns/vm/sa/web")
	})
}

// answering returns the names of the hosts whose applications answer some requests of a host.
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

// awaitAnswering waits until exactly the named hosts answer: v1, v2 or both.
func (h *joinedHost) awaitAnswering(names string) {
	h.t.Helper()
	parts.EventuallySees(h.t, joinedLimit, names+" answer", func() (bool, string) {
		got := h.answering()
		return got == names, got
	})
}
