package prometheus_test

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// workloadMesh configures a workload with Istio's metrics. The workload sends requests to itself,
// with mutual TLS and in plain text.
const workloadMesh = `apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: default}
spec:
  ingress:
  - {port: {number: %[1]d, protocol: HTTP, name: http}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%[3]d"}
  - {port: {number: %[2]d, protocol: TCP, name: tcp}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%[4]d"}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: pay, namespace: default}
spec:
  hosts: [pay.test]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: %[5]d, name: http, protocol: HTTP, targetPort: %[1]d}
  - {number: %[6]d, name: tcp, protocol: TCP, targetPort: %[2]d}
  endpoints: [{address: 127.0.0.1, serviceAccount: default, labels: {app: pay, service.istio.io/workload-name: pay-v1}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: plain, namespace: default}
spec:
  hosts: [plain.test]
  resolution: STATIC
  ports:
  - {number: %[7]d, name: http, protocol: HTTP, targetPort: %[1]d}
  - {number: %[8]d, name: tcp, protocol: TCP, targetPort: %[2]d}
  endpoints: [{address: 127.0.0.1}]
`

// TestDashboards_OfIstioHaveData runs the queries of Istio's service and workload dashboards with a
// Prometheus that scrapes an agent. All must have data, except those with a reason in istio.yaml.
func TestDashboards_OfIstioHaveData(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	root := pkitest.NewAuthority(t, "root", nil)
	leaf := pkitest.LeafTemplate("workload", 24*time.Hour)
	leaf.URIs = []*url.URL{{Scheme: "spiffe", Host: "cluster.local", Path: "/ns/default/sa/default"}}
	chain, key := root.Issue(t, leaf)
	// irate() compares the last two scrapes, so Envoy must flush its histograms between them. Its
	// default interval is 5 s.
	r.WriteFile("flush.yaml", "stats_flush_interval: 1s\n")
	toml := fmt.Sprintf("[envoy]\nbootstrap_override = %q\n", r.Dir+"/flush.yaml") +
		"[node]\nip = \"127.0.0.1\"\nmetadata = {WORKLOAD_NAME = \"pay-v1\"}\n" +
		"labels = {app = \"pay\"}\n[discovery]\n" +
		fmt.Sprintf("mesh_config_file = %q\n[identity]\nprovider = \"files\"\n", r.Dir+"/meshconfig.yaml")
	for name, text := range map[string][]byte{"cert_file": chain, "key_file": key,
		"root_ca_file": pkitest.PEM(root.Certificate)} {
		r.WriteFile(name, string(text))
		toml += fmt.Sprintf("%s = %q\n", name, filepath.Join(r.Dir, name))
	}
	r.SetTOML(toml)
	r.WriteFile("meshconfig.yaml", "defaultProviders: {metrics: [prometheus]}\n")
	ports := make([]int, 6)
	for i := range ports {
		ports[i] = parts.FreePort(t)
	}
	r.WriteFile("mesh.d/web.yaml", fmt.Sprintf(workloadMesh, ports[0], ports[1], r.Ports.Backend,
		r.Ports.Echo, ports[2], ports[3], ports[4], ports[5]))
	r.StartReady()
	rig.Eventually(t, time.Minute, "the service answers", func() bool {
		status, _, err := r.GetHostThroughEnvoy("pay.test", ports[2], "/")
		return err == nil && status == 200
	})
	p := ofAgent.prometheus(t, "outrider", 15020, r.Ports.Status)
	var all []query
	for _, name := range []string{"istio-service-dashboard.json", "istio-workload-dashboard.json"} {
		text, err := os.ReadFile(filepath.Join(istio(t), "manifests/addons/dashboards", name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, queries(t, name, text)...)
	}
	checkPanels(t, p, "istio.yaml", all, nil, func() {
		for _, at := range []struct {
			host      string
			http, tcp int
		}{{"pay.test", ports[2], ports[3]}, {"plain.test", ports[4], ports[5]}} {
			for _, path := range []string{"/", "/status/404", "/status/500"} {
				if _, _, err := r.GetHostThroughEnvoy(at.host, at.http, path); err != nil {
					t.Fatal(err)
				}
			}
			connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", at.tcp), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			talk(t, connection, "ping\n")
		}
	})
}

// istio returns the directory of Istio's module in the version that the tests use.
func istio(t *testing.T) string {
	t.Helper()
	command := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "istio.io/istio")
	command.Dir = filepath.Join(parts.RepositoryRoot(), "scripts", "parts", "istiod")
	command.Env = append(os.Environ(), "GOFLAGS=")
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
