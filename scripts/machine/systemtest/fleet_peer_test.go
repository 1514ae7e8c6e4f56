package systemtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// member is a machine of the fleet that runs Outrider or pilot-agent with files of istioctl. Its
// WorkloadGroup, service account and service have the same name.
type member struct {
	*Host
	f                            *fleet
	unit, name, address, service string
	other                        *member // the member that calls the service of this one
	took                         []time.Duration
}

func (m *member) entry() string { return m.name + "-" + m.address }

// step runs an action, and measures the time until the member's WorkloadEntry is in a state.
func (m *member) step(action string, reached func(*cluster.WorkloadEntry) bool) {
	m.t.Helper()
	began := time.Now()
	m.RunScript(action)
	m.Eventually(time.Minute, m.unit+": "+action, func() bool {
		return reached(m.f.cluster.WorkloadEntry("vm", m.entry()))
	})
	m.took = append(m.took, time.Since(began).Round(time.Millisecond))
}

func healthy(e *cluster.WorkloadEntry) bool { return e != nil && e.Health() == "True" }
func unhealthy(e *cluster.WorkloadEntry) bool {
	return e != nil && strings.HasPrefix(e.Health(), "False ")
}
func gone(e *cluster.WorkloadEntry) bool { return e == nil }

// listens waits until Envoy has the inbound listener of the service, which istiod sends at its next
// full push. Earlier connections use a catch-all listener, with mutual TLS but without HTTP
// headers, until they end.
func (m *member) listens() {
	m.t.Helper()
	m.Eventually(time.Minute, m.unit+": Envoy has the inbound listener", func() bool {
		return strings.Contains(m.RunScript("curl -s 'http://127.0.0.1:15000/config_dump?"+
			"resource=dynamic_listeners'"), "inbound|8080||")
	})
}

// answers waits until the response of the member's service to the other member contains all texts.
func (m *member) answers(texts ...string) {
	m.t.Helper()
	m.Eventually(time.Minute, fmt.Sprint(m.unit, " answers ", texts), func() bool {
		got := m.other.call(m.name+".test", m.service, "headers")
		return !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(got, s) })
	})
}

// object returns the labels and the spec of the WorkloadEntry, without the member's name and
// address.
func (m *member) object() string {
	m.t.Helper()
	e := m.f.cluster.WorkloadEntry("vm", m.entry())
	return strings.NewReplacer(m.name, "NAME", m.address, "ADDRESS").Replace(
		fmt.Sprint(e.Metadata.Labels, string(e.Spec)))
}

// state returns the conditions and the names of the annotations of a WorkloadEntry, without times
// and messages.
func state(e cluster.WorkloadEntry) string {
	var names []string
	for _, c := range e.Status.Conditions {
		names = append(names, c.Type+" "+c.Status)
	}
	for key := range e.Metadata.Annotations {
		_, name, _ := strings.Cut(key, "/")
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// besidePilotAgent runs pilot-agent on the client and Outrider on the server, with the same files
// of istioctl. They call each other with mutual TLS. Their WorkloadEntries have the same content
// and the same sequence of states, with two exceptions: pilot-agent reports a failed probe before
// its Envoy has started, and Outrider reports that it is unhealthy before it stops.
func (f *fleet) besidePilotAgent() {
	f.t.Helper()
	for _, o := range fleetMesh[:2] { // the WorkloadGroup and the service
		f.create(meshObject{o.resource, strings.NewReplacer("web", "client", "0.10", "0.11").
			Replace(o.text)})
	}
	ours := &member{Host: f.server, f: f, unit: "outrider.service", name: "web",
		address: f.address, service: "240.240.0.10"}
	theirs := &member{Host: f.client, f: f, unit: "istio.service", name: "client",
		address: f.networks[1].Address, service: "240.240.0.11", other: ours}
	ours.other = theirs
	ours.files(f.networks[0].Peer)
	theirs.RunScript("systemctl stop outrider.service")
	ours.RunScript("rm /etc/outrider/conf.d/60-fleet.toml && outrider import istio /root/vm --apply && " +
		"ip route add 240.240.0.0/16 via " + theirs.address)
	theirs.files(f.address)
	theirs.installSidecar()
	theirs.startApplication("client")

	var seen []func() []string
	for _, m := range []*member{ours, theirs} {
		seen = append(seen, f.cluster.WatchWorkloadEntry("vm", m.entry(), state))
		m.step("systemctl start --no-block "+m.unit, healthy)
	}
	if a, b := ours.object(), theirs.object(); a != b {
		f.t.Errorf("the WorkloadEntry is %s, with pilot-agent %s", a, b)
	}
	const account = "spiffe://cluster.local/ns/vm/sa/"
	for _, m := range []*member{ours, theirs} {
		m.listens()
		m.answers("By="+account+m.name+";", "URI="+account+m.other.name)
		m.step("systemctl stop web.service", unhealthy)
		m.answers("no healthy upstream")
		m.step("systemctl start web.service", healthy)
		m.answers(" answers HTTP")
	}
	theirs.step("systemctl stop --no-block istio.service", gone)
	theirs.answers("no healthy upstream")
	ours.step("systemctl stop --no-block outrider.service", gone)
	for i, what := range []string{"healthy", "unhealthy", "healthy again", "gone"} {
		f.t.Logf("%s after %v, with pilot-agent %v", what, ours.took[i], theirs.took[i])
	}

	const more = "autoRegistrationGroup %s health-checks-enabled workloadController"
	up, away := fmt.Sprintf(more, "connectedAt"), fmt.Sprintf(more, "disconnectedAt")
	good, bad := "Healthy True "+up, "Healthy False "+up
	got, want := seen[0](), []string{up, good, bad, good, bad, "Healthy False " + away, "none"}
	if !slices.Equal(got, want) {
		f.t.Errorf("with Outrider: %q, want %q", got, want)
	}
	got, want = seen[1](), []string{up, bad, good, bad, good, "Healthy True " + away, "none"}
	if !slices.Equal(got, want) {
		f.t.Errorf("with pilot-agent: %q, want %q", got, want)
	}
}

// files writes the files of istioctl for the member to /root/vm. istiod is the address of istiod.
func (m *member) files(istiod string) {
	m.t.Helper()
	// ISTIO_INBOUND_PORTS limits the captured ports, by default all: the server forwards the
	// client's connections to istiod, which must not be captured.
	more := map[string]string{
		"cluster.env": fmt.Sprintf("ISTIO_META_AUTO_REGISTER_GROUP='%s'\nISTIO_SVC_IP='%s'\n"+
			"ISTIO_INBOUND_PORTS='8080'\n", m.name, m.address),
		"mesh.yaml": "  readinessProbe: {periodSeconds: 1, httpGet: {path: /, port: 8080}}\n" +
			"  terminationDrainDuration: 1s\n",
	}
	for name, end := range more {
		text, err := os.ReadFile(filepath.Join(parts.RepositoryRoot(), "cmd", "outrider", "istiovm",
			"testdata", "bare", name))
		if err != nil {
			m.t.Fatal(err)
		}
		m.WriteText("/root/vm/"+name, strings.NewReplacer("bare", m.name, "'default'",
			"'"+m.name+"'",
			": default\n", ": "+m.name+"\n", "'{", `'{"app":"`+m.name+`",`, "POD_NAMESPACE: vm\n",
			"POD_NAMESPACE: vm\n    ISTIO_META_AUTO_REGISTER_GROUP: "+m.name+"\n").
			Replace(string(text))+end)
	}
	m.WriteText("/root/vm/root-cert.pem", m.f.cluster.IstiodRootCertificates("vm"))
	m.WriteText("/root/vm/istio-token", m.f.cluster.Token("vm", m.name))
	m.WriteText("/root/vm/hosts", istiod+" "+cluster.IstiodServerName+"\n")
}

// installSidecar installs pilot-agent and Istio's scripts, from Istio's source, as the package
// istio-sidecar does. It copies the files in /root/vm as Istio's documentation describes.
func (m *member) installSidecar() {
	m.t.Helper()
	source, err := parts.IstioSourceDir()
	if err != nil {
		m.t.Fatal(err)
	}
	root := fmt.Sprintf("/proc/%d/root", m.Leader())
	for from, to := range map[string]string{packages(m.t, "sudo") + "/.": root,
		parts.BuildIstio(m.t, "istio.io/istio/pilot/cmd/pilot-agent"): root + "/usr/local/bin",
		source + "/tools/packaging":                                   root + "/root/istio"} {
		if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
			m.t.Fatalf("%v: %s", err, out)
		}
	}
	m.RunScript(`set -eu
cd /root/istio/common
cp --remove-destination /opt/envoy/envoy /usr/local/bin/envoy
install -t /usr/local/bin istio-start.sh
install -t /usr/lib/systemd/system -m 0644 istio.service
install -D -m 0644 envoy_bootstrap.json /var/lib/istio/envoy/envoy_bootstrap_tmpl.json
install -m 0644 sidecar.env /var/lib/istio/envoy
bash ../postinst.sh
cd /root/vm
install -D -m 0644 root-cert.pem /etc/certs/root-cert.pem
install -D -m 0644 istio-token /var/run/secrets/tokens/istio-token
cp cluster.env /var/lib/istio/envoy
cp mesh.yaml /etc/istio/config/mesh
(cat hosts; echo 127.0.1.1 $(hostname)) >>/etc/hosts
mkdir -p /etc/istio/proxy
chown -R istio-proxy /var/lib/istio /etc/certs /etc/istio/proxy /etc/istio/config /var/run/secrets
systemctl daemon-reload`)
	m.t.Cleanup(func() {
		if m.t.Failed() {
			out, _ := m.Run(context.Background(), "tail", "-n", "150", "/var/log/istio/istio.log")
			m.t.Logf("pilot-agent: %s", out)
		}
	})
}
