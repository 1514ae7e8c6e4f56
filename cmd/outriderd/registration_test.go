package main_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
	"outrider.org/outrider/scripts/rig"
)

// workloadGroup is a WorkloadGroup, and a ServiceEntry that selects its WorkloadEntries.
const workloadGroup = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: web, namespace: vm}
spec:
  metadata: {labels: {app: web}}
  template: {serviceAccount: web, ports: {http: 8080}}
`

// registered is an agent that registers itself with a real istiod, as WorkloadEntry
// vm/web-127.0.0.1. Its health check succeeds while the file "up" exists.
type registered struct {
	*rig.Rig
	t       *testing.T
	cluster *cluster.Cluster
	gate    *gate // between the agent and istiod
}

// newRegistered starts the API server and istiod. environment has additional variables of istiod.
// The caller starts the agent.
func newRegistered(t *testing.T, environment ...string) *registered {
	t.Helper()
	c := cluster.Start(t)
	r := &registered{t: t, cluster: c, Rig: rig.New(t, rig.Options{Race: true})}
	c.Create("/api/v1/namespaces", "metadata: {name: vm}")
	c.Create("/api/v1/namespaces/vm/serviceaccounts", "metadata: {name: web}")
	c.Create("/apis/networking.istio.io/v1/namespaces/vm/workloadgroups", workloadGroup)
	c.Create("/apis/networking.istio.io/v1/namespaces/default/serviceentries",
		r.WebServiceYAML(r.Ports.Backend))
	address, _ := c.StartIstiod(environment...)
	r.gate = newGate(t, address)
	r.WriteFile("root.pem", c.IstiodRootCertificates("vm"))
	r.WriteFile("token", c.Token("vm", "web"))
	r.WriteFile("mesh.d/web.yaml", "")
	r.WriteFile("up", "")
	r.SetTOML(fmt.Sprintf(`[node]
ip = "127.0.0.1"
namespace = "vm"
service_account = "web"
workload_group = "web"
[discovery]
address = %q
auth = "tls"
root_ca_file = %q
server_name = %q
[identity]
provider = "istiod"
token_file = %q
[health]
exec = ["test", "-e", %q]
period = "200ms"
timeout = "10s"
`, r.gate.address, r.path("root.pem"), cluster.IstiodServerName, r.path("token"), r.path("up")))
	return r
}

func (r *registered) path(name string) string { return filepath.Join(r.Dir, name) }

// entry returns the agent's WorkloadEntry; nil: it does not exist.
func (r *registered) entry() *cluster.WorkloadEntry {
	return r.cluster.WorkloadEntry("vm",
		"web-127.0.0.1")
}

// await waits until the health in the agent's WorkloadEntry has a prefix, and returns the entry.
func (r *registered) await(limit time.Duration, prefix string) *cluster.WorkloadEntry {
	r.t.Helper()
	return r.cluster.AwaitWorkloadEntryHealth(r.t, limit, "vm", "web-127.0.0.1", prefix)
}

// discoveryd starts an outrider-discoveryd with the same API server, and makes the agent trust its
// CA. grace is the time after which the server removes the WorkloadEntry of a disconnected agent.
func (r *registered) discoveryd(grace time.Duration) (address string, kill func()) {
	r.t.Helper()
	authority := pkitest.NewAuthority(r.t, "server", nil)
	template := pkitest.LeafTemplate("server", time.Hour)
	template.DNSNames = []string{cluster.IstiodServerName}
	chain, key := authority.Issue(r.t, template)
	for name, text := range map[string]string{"server.pem": string(chain), "server.key": string(key),
		"root.pem":       r.cluster.IstiodRootCertificates("vm") + string(pkitest.PEM(authority.Certificate)),
		"none/mesh.yaml": ""} {
		r.WriteFile(name, text)
	}
	address = fmt.Sprintf("127.0.0.1:%d", parts.FreePort(r.t))
	process := parts.StartProcess(r.t, parts.Discoveryd{MeshFolder: r.path("none"), TLS: address,
		ExtraConfig: fmt.Sprintf(`[tls]
cert_file = %q
key_file = %q
[auth]
kubernetes_token_review = true
[registration]
enabled = true
grace_period = %q
[[source]]
type = "kubernetes"
kubeconfig = %q
`, r.path("server.pem"), r.path("server.key"), grace.String(),
			r.cluster.Kubeconfig(r.t, r.cluster.APIServerAddress(), "secret"))}.Command(r.t))
	return address, process.Kill
}

func TestRegistration_HealthReachesIstiod(t *testing.T) {
	t.Parallel()
	r := newRegistered(t)
	daemon := r.StartReady()
	e := r.await(20*time.Second, "True")
	if e.Metadata.Annotations["istio.io/autoRegistrationGroup"] != "web" ||
		e.Metadata.Annotations["proxy.istio.io/health-checks-enabled"] != "true" ||
		e.Metadata.Labels["app"] != "web" {
		t.Errorf("%+v", e)
	}
	var status api.Status
	if r.RunOutriderJSON(&status, "status", "--json"); status.Health == nil ||
		status.Health.State != "healthy" {
		t.Errorf("%+v", status.Health)
	}
	if err := os.Remove(r.path("up")); err != nil {
		t.Fatal(err)
	}
	r.await(10*time.Second, "False exit status 1")
	out := r.RunOutrider("status").Stdout
	for _, want := range []string{"unhealthy for", "exit status 1", "workload-unhealthy"} {
		if !strings.Contains(out, want) {
			t.Errorf("outrider status does not show %q:\n%s", want, out)
		}
	}
	r.WriteFile("up", "")
	r.await(10*time.Second, "True")
	if result := r.RunOutrider("drain"); result.ExitCode != 0 {
		t.Fatalf("%+v", result)
	}
	r.await(5*time.Second, "False the proxy drains")
	if result := r.RunOutrider("undrain"); result.ExitCode != 0 {
		t.Fatalf("%+v", result)
	}
	r.await(10*time.Second, "True")

	r.Signal(daemon.Process.Pid, syscall.SIGTERM)
	r.await(5*time.Second, "False the proxy is stopping")
	if !daemon.Running() {
		t.Error("the agent ended before the WorkloadEntry was unhealthy")
	}
	daemon.Wait(t, time.Minute)
	rig.Eventually(t, time.Minute, "istiod removes the WorkloadEntry",
		func() bool { return r.entry() == nil })
}

// The agent's WorkloadEntry remains, and remains healthy, over reloads and restarts of the agent.
// istiod would remove it ten seconds after the end of the last stream.
func TestRegistration_SurvivesRestarts(t *testing.T) {
	t.Parallel()
	r := newRegistered(t)
	r.StartReady()
	now := r.await(20*time.Second, "True")
	seen := r.cluster.WatchWorkloadEntry("vm", "web-127.0.0.1", cluster.WorkloadEntry.UIDAndHealth)
	load := r.StartLoad(0.2)
	for range 2 {
		if result := r.RunOutrider("reload"); result.ExitCode != 0 { // starts an overlap of two Envoys
			t.Fatalf("reload: %+v\n%s", result, r.Daemon().Output())
		}
		r.KillAgent()
		r.StartReady()
		before := now
		rig.Eventually(t, time.Minute, "the WorkloadEntry is connected again", func() bool {
			if now = r.entry(); now == nil {
				t.Fatal("the WorkloadEntry has disappeared")
			}
			return now.ConnectedAt() != "" && now.ConnectedAt() != before.ConnectedAt()
		})
	}
	if report := load.Stop(); report.Lost > 0 {
		t.Errorf("%d of %d requests were lost: %+v", report.Lost, report.Total, report.Classes)
	}
	if got, want := seen(), []string{now.Metadata.UID + " True"}; !slices.Equal(got, want) {
		t.Errorf("the WorkloadEntry was %q, not always %q", got, want)
	}
}

// Two istiods and an outrider-discoveryd share one API server. The agent's connection moves between
// them: first because a load balancer moves it, then because the server in use is killed. The
// WorkloadEntry remains, and receives health reports.
func TestRegistration_SurvivesAnIstiod(t *testing.T) {
	t.Parallel()
	const grace = 2 * time.Second // grace period after which a server removes a disconnected entry
	environment := "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD=" + grace.String()
	r := newRegistered(t, environment)
	first := r.gate.target
	second, killSecond := r.cluster.StartIstiod(environment)
	third, killThird := r.discoveryd(grace)
	r.StartReady()
	now := r.await(20*time.Second, "True")
	load := r.StartLoad(0.2)
	for _, step := range []struct {
		what   string
		change func()
	}{
		{"moved to the second", func() { r.gate.forward(second) }},
		{"the second is killed", func() { killSecond(); r.gate.forward(first) }},
		{"moved to outrider-discoveryd", func() { r.gate.forward(third) }},
		{"outrider-discoveryd is killed", func() { killThird(); r.gate.forward(first) }},
	} {
		before, seen := now, r.cluster.WatchWorkloadEntry("vm", "web-127.0.0.1",
			cluster.WorkloadEntry.UIDAndHealth)
		step.change()
		rig.Eventually(t, time.Minute, step.what+": connected to the other server", func() bool {
			if now = r.entry(); now == nil {
				t.Fatalf("%s: the WorkloadEntry has disappeared", step.what)
			}
			return now.ConnectedAt() != "" && now.Controller() != before.Controller()
		})
		<-time.After(2 * grace) // a wrong removal would happen within this time
		if got, want := seen(), []string{now.Metadata.UID + " True"}; !slices.Equal(got, want) {
			t.Errorf("%s: the WorkloadEntry was %q, not always %q", step.what, got, want)
		}
		if err := os.Remove(r.path("up")); err != nil {
			t.Fatal(err)
		}
		r.await(10*time.Second, "False exit status 1")
		r.WriteFile("up", "")
		now = r.await(10*time.Second, "True")
	}
	if report := load.Stop(); report.Lost > 0 || report.Total == 0 {
		t.Errorf("%d of %d requests were lost: %+v", report.Lost, report.Total, report.Classes)
	}
}
