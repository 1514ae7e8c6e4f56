package main

import (
	"fmt"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/load"
	"outrider.org/outrider/scripts/rig"
)

// realAgent is an agent with an Envoy that serves a service of its own.
type realAgent struct {
	*rig.Rig
	name string
	load *rig.Load
}

// realAgentMesh limits what an agent receives to its own service.
const realAgentMesh = `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: %[1]s, namespace: ns}
spec:
  workloadSelector: {labels: {bench: %[1]s}}
  egress: [{hosts: [./%[1]s.test]}]
`

// real starts an agent that uses the servers of a folder.
func (a *agentTLS) real(t *stage, folder, name string, servers []*discoveryServer) *realAgent {
	r := &realAgent{name: name, Rig: rig.New(t, rig.Options{TOML: fmt.Sprintf(`[node]
namespace = "ns"
service_account = "web"
labels = { bench = %q }
[discovery]
address = [%q, %q]
auth = "mtls"
root_ca_file = %q
server_name = "web.test"
[identity]
provider = "files"
cert_file = %q
key_file = %q
root_ca_file = %[4]q
`, name, servers[0].address, servers[1].address, a.roots, a.chain, a.key)})}
	services := strings.NewReplacer("name: web\n", "name: "+name+"\n", "namespace: default",
		"namespace: ns", "web.test", name+".test").Replace(r.WebServiceYAML(r.Ports.Backend))
	replaceFile(t, folder, name+".yaml", services+fmt.Sprintf(realAgentMesh, name))
	r.StartReady()
	r.connected(t)
	rig.Eventually(t, time.Minute, "its service answers", func() bool {
		status, _, err := r.GetHostThroughEnvoy(name+".test", r.Ports.HTTP, "/")
		return err == nil && status == 200
	})
	return r
}

// connected waits until the agent has a server, and returns its address.
func (r *realAgent) connected(t *stage) string {
	var status api.Status
	rig.Eventually(t, time.Minute, "the agent is connected", func() bool {
		r.RunOutriderJSON(&status, "status", "--json")
		return status.Discovery.State == "connected"
	})
	return status.Discovery.Address
}

// begin starts the load.
func (r *realAgent) begin(t *stage, rate float64) {
	address := fmt.Sprintf("127.0.0.1:%d", r.Ports.HTTP)
	r.load = rig.StartLoad(t, load.Config{HTTPAddress: address, HTTP2Address: address,
		TCPAddress: fmt.Sprintf("127.0.0.1:%d", r.Ports.TCP), Host: r.name + ".test", Rate: rate})
}
