package systemtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/machine"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// joinedGrace is the grace period of the server of a joinedFleet.
const joinedGrace = 3 * time.Second

// joinedLog is the access log of the Envoys.
const joinedLog = "/var/log/outrider/access.log"

const consulUnit = `[Unit]
Description=Consul
[Service]
ExecStart=/opt/consul/consul agent -config-dir /etc/consul
Restart=always
RestartSec=100ms
[Install]
WantedBy=multi-user.target
`

const consulConfig = `server = true
bootstrap_expect = 1
node_name = "server"
data_dir = "/var/lib/consul"
bind_addr = "127.0.0.1"
client_addr = "127.0.0.1"
log_level = "warn"
disable_update_check = true
performance { raft_multiplier = 1 }
ports { dns = -1 grpc = -1 grpc_tls = -1 }
`

const joinedServer = `mesh_config_file = "/etc/outrider/meshconfig.yaml"
[listen]
plaintext = ""
[auth]
join_key_file = "/etc/outrider/join.pub"
[registration]
enabled = true
store = "consul"
grace_period = %q
[[source]]
type = "files"
paths = ["/etc/outrider/mesh.d"]
[[registry]]
type = "consul"
`

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

// joinedFleet is a mesh of two machines that have only the package, and of a third with
// outrider-discoveryd and Consul, which also forwards between them.
type joinedFleet struct {
	t      *testing.T
	server *Host
	hosts  [2]*joinedHost
}

// joinedHost is a machine of a joinedFleet, with an application that answers with its name.
type joinedHost struct {
	*Host
	name, address string // address of the machine
	gateway       string // address of the server, as the machine reaches it
}

// newJoinedFleet boots the machines, and starts Consul and outrider-discoveryd.
func newJoinedFleet(t *testing.T) *joinedFleet {
	t.Helper()
	program, err := exec.CommandContext(t.Context(),
		filepath.Join(parts.Root(), "scripts", "get-consul")).Output()
	if err != nil {
		t.Fatalf("scripts/get-consul: %v", err)
	}
	consul := filepath.Dir(strings.TrimSpace(string(program)))
	f := &joinedFleet{t: t}
	middle := parts.NewOtherHost(t)
	var networks [2]*parts.OtherHost
	middle.Do(t, func() {
		for i := range networks {
			networks[i] = parts.NewOtherHost(t)
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	})
	boot := func(network *parts.OtherHost, more ...string) *Host {
		h := &Host{t: t,
			Machine: machine.BootForTest(t, machine.Options{Network: network.Namespace(),
				Bind: append(more, debs(t)+":"+debPlace, rig.Build(t, false).Dir+":"+programs,
					filepath.Dir(parts.Envoy(t))+":"+envoy)})}
		h.Script("rm -f /usr/sbin/policy-rc.d /usr/local/bin/envoy /usr/bin/envoy")
		t.Cleanup(func() {
			if t.Failed() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				log, _ := h.Run(ctx, "journalctl", "--no-pager", "-o", "short-monotonic", "-n", "120",
					"-u", "outrider*", "-u", "consul*")
				t.Logf("the journal of %s:\n%s", h.Name(), log)
			}
		})
		return h
	}
	f.server = boot(middle, consul+":/opt/consul")
	for i, network := range networks {
		h := &joinedHost{Host: boot(network), name: fmt.Sprintf("v%d", i+1),
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
		h.Script("systemctl daemon-reload; systemctl enable --now web.service")
		f.hosts[i] = h
	}
	f.startServer()
	return f
}

// startServer installs and starts Consul and outrider-discoveryd, with a new authority.
func (f *joinedFleet) startServer() {
	f.t.Helper()
	s := f.server
	s.Write("/etc/consul/consul.hcl", consulConfig)
	s.Write("/etc/systemd/system/consul.service", consulUnit)
	s.Script("systemctl daemon-reload; systemctl enable --now consul.service")
	s.installDiscoveryd()
	said := s.Script("outrider-discoveryd ca init /etc/outrider/ca " + f.hosts[0].gateway + " " +
		f.hosts[1].gateway)
	_, config, _ := strings.Cut(said, "/etc/outrider/discoveryd.d/ca.toml:\n")
	config, _, _ = strings.Cut(config, "\nThen:")
	s.Write("/etc/outrider/discoveryd.d/10-ca.toml", config)
	s.Write("/etc/outrider/discoveryd.d/20-fleet.toml", fmt.Sprintf(joinedServer,
		joinedGrace.String()))
	if full() { // certificates are renewed during the test
		s.Write("/etc/outrider/discoveryd.d/21-short.toml", "[ca]\nmax_ttl = \"1m\"\n")
	}
	s.Write("/etc/outrider/mesh.d/mesh.yaml", joinedMesh)
	f.route("host: web.test")
	s.Write("/etc/outrider/meshconfig.yaml", "accessLogFile: "+joinedLog+"\n")
	s.Script(`set -eu
umask 077
openssl ecparam -genkey -name prime256v1 -noout -out /root/join.key
openssl ec -in /root/join.key -pubout -out /etc/outrider/join.pub 2>/dev/null
chmod 0644 /etc/outrider/join.pub
chown outrider-discoveryd /etc/outrider/ca/*.key
systemctl enable --now outrider-discoveryd.service`)
}

// route replaces the destination of requests for web.test.
func (f *joinedFleet) route(destination string) {
	f.t.Helper()
	f.server.Write("/etc/outrider/mesh.d/routing.yaml", fmt.Sprintf(routing, destination))
}

func (h *Host) installDiscoveryd() {
	h.t.Helper()
	h.Script(fmt.Sprintf("dpkg -i %s/%s/outrider-discoveryd_%[2]s-1_amd64.deb", debPlace, oldVersion))
}

// invite gives a machine what an operator copies to it: a token, and the root certificates.
func (f *joinedFleet) invite(h *joinedHost) {
	f.t.Helper()
	h.Write("/root/token", f.server.Script(
		"outrider-discoveryd token --service-account vm/web --key /root/join.key 2>/dev/null"))
	h.Write("/root/root.pem", f.server.Script("cat /etc/outrider/ca/root.pem"))
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
	parts.EventuallySees(h.t, time.Minute, names+" answer", func() (bool, string) {
		got := h.answering()
		return got == names, got
	})
}
