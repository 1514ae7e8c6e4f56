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
	"outrider.org/outrider/scripts/rig"
)

// upstreamed is an agent whose Envoy is configured by a real istiod.
type upstreamed struct {
	*rig.Rig
	t       *testing.T
	ports   [3]int
	address string
	mesh    string   // MeshConfig of istiod
	env     []string // additional environment variables of istiod

	killIstiod func()
}

func newUpstreamed(t *testing.T) *upstreamed {
	t.Helper()
	u := &upstreamed{t: t, Rig: rig.New(t, rig.Options{Race: true})}
	for i := range u.ports {
		u.ports[i] = parts.FreePort(t)
	}
	u.address = fmt.Sprintf("127.0.0.1:%d", u.ports[0])
	u.WriteFile("istio.d/web.yaml", u.WebServiceYAML(u.Ports.Backend))
	// invalid, but ignored while [discovery] address is set
	u.WriteFile("mesh.d/web.yaml", "not: [valid")
	u.mesh, u.env = "enableAutoMtls: false\n", nil
	u.startIstiod()
	u.SetTOML(fmt.Sprintf("[discovery]\naddress = %q\nauth = \"none\"\n", u.address))
	return u
}

func (u *upstreamed) startIstiod() {
	u.t.Helper()
	u.killIstiod = parts.StartIstiod(u.t, filepath.Join(u.Dir, "istio.d"), u.mesh, u.ports, u.env...)
}

// awaitState waits until the connection to istiod has one of the states.
func (u *upstreamed) awaitState(wanted ...string) api.Discovery {
	u.t.Helper()
	var status api.Status
	rig.Eventually(u.t, time.Minute, "discovery is "+strings.Join(wanted, " or "), func() bool {
		u.RunOutriderJSON(&status, "status", "--json")
		return slices.Contains(wanted, status.Discovery.State)
	})
	return status.Discovery
}

// serves waits until Envoy serves the service.
func (u *upstreamed) serves() {
	u.t.Helper()
	rig.Eventually(u.t, time.Minute, "the service answers", func() bool {
		status, _, err := u.GetHostThroughEnvoy("web.test", u.Ports.HTTP, "/")
		return err == nil && status == 200
	})
}

func TestUpstream_NothingIsLostWhateverRestarts(t *testing.T) {
	t.Parallel()
	u := newUpstreamed(t)
	u.StartReady()
	u.serves()
	if d := u.awaitState("connected"); d.Address != u.address {
		t.Errorf("%+v", d)
	}
	var status api.Status
	if u.RunOutriderJSON(&status, "status", "--json"); len(status.Conditions) > 0 {
		t.Errorf("conditions %+v", status.Conditions)
	}
	follows := func() { // waits until Envoy has accepted configuration from istiod
		t.Helper()
		rig.Eventually(t, time.Minute, "Envoy follows istiod", func() bool {
			out := u.RunOutrider("proxy", "status", "-o", "wide").Stdout
			return strings.Count(out, "upstream") >= 4 && strings.Contains(out, "listeners  accepted")
		})
	}
	follows()
	load := u.StartLoad(0.2)
	if result := u.RunOutrider("reload"); result.ExitCode != 0 { // starts an overlap of two Envoys
		t.Fatalf("reload: %+v\n%s", result, u.Daemon().Output())
	}
	restart := func(state string) { // Envoy continues to serve, and connects to the next agent
		t.Helper()
		u.KillAgent()
		u.StartReady()
		u.awaitState(state)
	}
	restart("connected")
	follows()
	u.killIstiod()
	// The state depends on whether the adopted Envoy has already connected to the agent.
	u.awaitState("connecting", "cached")
	if out := u.RunOutrider("status").Stdout; !strings.Contains(out, "upstream-unreachable") &&
		!strings.Contains(out, "no connection to the upstream server") {
		t.Errorf("outrider status does not show the loss:\n%s", out)
	}
	// the new epoch receives its resources from the agent's cache
	if result := u.RunOutrider("reload"); result.ExitCode != 0 {
		t.Fatalf("reload without istiod: %+v\n%s", result, u.Daemon().Output())
	}
	u.awaitState("cached")
	restart("cached")
	u.startIstiod()
	u.awaitState("connected")
	if report := load.Stop(); report.Lost > 0 {
		t.Errorf("%d of %d requests were lost: %+v", report.Lost, report.Total, report.Classes)
	}
}

func TestUpstream_StartsFromTheCache(t *testing.T) {
	t.Parallel()
	u := newUpstreamed(t)
	daemon := u.StartReady()
	u.serves()
	u.Signal(daemon.Process.Pid, syscall.SIGTERM)
	daemon.Wait(t, time.Minute)
	u.killIstiod()

	u.StartReady()
	u.serves()
	if d := u.awaitState("cached"); !strings.Contains(d.Detail, "configuration of ") {
		t.Errorf("%+v", d)
	}
	u.startIstiod()
	u.awaitState("connected")
	u.serves()
}

func TestUpstream_ReloadSwitchesBetweenServers(t *testing.T) {
	t.Parallel()
	u := newUpstreamed(t)
	upstream := fmt.Sprintf("[discovery]\naddress = %q\nauth = \"none\"\n", u.address)
	u.WriteFile("mesh.d/web.yaml", u.WebServiceYAML(u.Ports.Backend))
	u.SetTOML("")
	u.StartReady()
	u.serves()
	load := u.StartLoad(0.2)
	for _, step := range []struct{ toml, state string }{{upstream, "connected"}, {"", "embedded"}} {
		u.SetTOML(step.toml)
		if result := u.RunOutrider("reload"); result.ExitCode != 0 {
			t.Fatalf("reload: %+v\n%s", result, u.Daemon().Output())
		}
		u.awaitState(step.state)
		u.serves()
	}
	if report := load.Stop(); report.Lost > 0 {
		t.Errorf("%d of %d requests were lost: %+v", report.Lost, report.Total, report.Classes)
	}
}

func TestUpstream_EnvoyConnectsItself(t *testing.T) {
	t.Parallel()
	u := newUpstreamed(t)
	u.SetTOML(fmt.Sprintf("[discovery]\naddress = %q\nauth = \"none\"\nproxy = false\n", u.address))
	u.StartReady()
	u.serves()
	_, metrics, err := u.GetHostThroughEnvoy("localhost", u.Ports.Status, "/stats/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`_cluster_upstream_rq_xx{envoy_response_code_class="2",cluster_name="outbound|%d||web.test"} `,
		`_http_downstream_cx_total{http_conn_manager_prefix="outbound_127.0.0.1_%d"} `,
	} {
		if want = fmt.Sprintf(want, u.Ports.HTTP); !strings.Contains(metrics, want) {
			t.Errorf("istiod's names are not the labels of %s in\n%s", want, metrics)
		}
	}
	if d := u.awaitState("direct"); d.Address != u.address {
		t.Errorf("%+v", d)
	}
}

// A root certificate in istiod's MeshConfig, which PCDS sends, is trusted besides those in
// root_ca_file. The same holds after a restart of the agent, before an Envoy has connected.
func TestUpstream_TrustBundleIsMerged(t *testing.T) {
	t.Parallel()
	root, other := pkitest.NewAuthority(t, "root", nil), pkitest.NewAuthority(t, "other", nil)
	u := newUpstreamed(t)
	u.killIstiod()
	u.env = []string{"ISTIO_MULTIROOT_MESH=true"}
	u.mesh += "caCertificates:\n- pem: |\n    " + strings.ReplaceAll(strings.TrimSpace(string(
		pkitest.PEM(other.Certificate))), "\n", "\n    ") + "\n"
	u.startIstiod()
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	u.WriteFile("cert.pem", string(chain))
	u.WriteFile("key.pem", string(key))
	u.WriteFile("root.pem", string(pkitest.PEM(root.Certificate)))
	output := filepath.Join(u.Dir, "output")
	if err := os.Mkdir(output, 0o700); err != nil {
		t.Fatal(err)
	}
	configuration := fmt.Sprintf("[discovery]\naddress = %q\nauth = \"none\"\n[identity]\n"+
		"provider = \"files\"\n"+
		"cert_file = %[2]q\nkey_file = %[3]q\nroot_ca_file = %[4]q\noutput_dir = %[5]q\n", u.address,
		filepath.Join(u.Dir, "cert.pem"), filepath.Join(u.Dir, "key.pem"),
		filepath.Join(u.Dir, "root.pem"), output)
	u.SetTOML(configuration)
	daemon := u.StartReady()
	want := string(pkitest.PEM(root.Certificate, other.Certificate))
	awaitRoots := func() {
		t.Helper()
		rig.Eventually(t, time.Minute, "both roots are trusted", func() bool {
			text, err := os.ReadFile(filepath.Join(output, "root-cert.pem"))
			return err == nil && string(text) == want
		})
	}
	awaitRoots()
	u.Signal(daemon.Process.Pid, syscall.SIGTERM)
	daemon.Wait(t, time.Minute)
	u.killIstiod()
	if err := os.RemoveAll(output); err != nil {
		t.Fatal(err)
	}
	// without an Envoy, nothing connects to the agent's xDS socket
	u.SetTOML(configuration + "[envoy]\nenabled = false\n")
	daemon = u.StartReady()
	awaitRoots()
	u.Signal(daemon.Process.Pid, syscall.SIGTERM)
	daemon.Wait(t, time.Minute)
	u.startIstiod()
	u.SetTOML(configuration)
	u.StartReady()
	u.SetTOML("")
	if result := u.RunOutrider("reload"); result.ExitCode != 0 {
		t.Fatalf("reload: %+v\n%s", result, u.Daemon().Output())
	}
}
