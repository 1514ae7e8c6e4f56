package systemtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
)

// answer returns the status code of a GET request in the machine; "000" if the connection is
// refused.
func (h *Host) answer(url string) string {
	out, _ := h.Run(h.t.Context(), "curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}",
		url)
	return out
}

// served lists URLs of Envoy's listeners, which respond while the proxy serves.
var served = []string{
	"http://127.0.0.1:80/", "http://127.0.0.1:15021/healthz/ready",
	"http://127.0.0.1:15090/stats/prometheus",
}

func TestUndrain_RestoresService(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustRun(t, "outrider", "drain")
	h.Eventually(time.Minute, "the listeners are closed", func() bool {
		return !slices.ContainsFunc(served, func(url string) bool { return h.answer(url) != "000" })
	})
	if code := h.answer("http://127.0.0.1:15020/healthz/ready"); code != "503" || h.Status().Ready {
		t.Errorf("with closed listeners readiness is %s", code)
	}
	h.MustRun(t, "outrider", "undrain")
	if code := h.EnvoyHTTPStatus(); code != "200" {
		t.Errorf("after undrain the service answers %s", code)
	}
	for _, url := range append(served[1:], "http://127.0.0.1:15020/healthz/ready") {
		if code := h.answer(url); code != "200" {
			t.Errorf("after undrain %s answers %s", url, code)
		}
	}
	h.MustRun(t, "outrider", "wait", "--timeout", "10s")
}

const ownBootstrap = `{"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 15000}}},
 "static_resources": {}}
`

// TestAdminView_YieldsToOwnBootstrap runs a user's bootstrap whose admin interface has the most
// common address, which is also that of the agent's view of the admin interface. The agent leaves
// it to Envoy.
func TestAdminView_YieldsToOwnBootstrap(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.WriteText("/etc/outrider/own.json", ownBootstrap)
	const key = "/etc/outrider/conf.d/50-own.toml"
	h.WriteText(key, "[envoy]\ncustom_config_file = \"/etc/outrider/own.json\"\n")
	h.MustRun(t, "systemctl", "start", "outrider.service")
	if code := h.answer("http://127.0.0.1:15000/ready"); code != "200" {
		t.Errorf("Envoy's own admin interface answers %s", code)
	}
	yields := func(c condition.Condition) bool {
		return c.Code == "admin-view-yields" && c.Severity == condition.Info
	}
	if !slices.ContainsFunc(h.Status().Conditions, yields) {
		t.Errorf("conditions: %+v", h.Status().Conditions)
	}
	h.MustRun(t, "rm", key)
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	h.Eventually(time.Minute, "the view is back", func() bool {
		return !slices.ContainsFunc(h.Status().Conditions, yields) &&
			h.answer("http://127.0.0.1:15000/ready") == "200"
	})
}

// TestJournal_NamesProblemsAndChanges starts the agent while another program uses port 15020, saves
// an invalid mesh file, reloads, and corrects the file. The journal reports the problems, their
// ends and the changes.
func TestJournal_NamesProblemsAndChanges(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.MustRun(t, "systemd-run", "--quiet", "--unit=stranger", programs+"/backend", "-http",
		"127.0.0.1:15020", "-tcp", "")
	h.Eventually(time.Minute, "port 15020 is taken", func() bool {
		return h.answer("http://127.0.0.1:15020/") != "000"
	})
	h.MustRun(t, "systemctl", "start", "outrider.service")
	says := func(priority, text string) func() bool {
		return func() bool {
			log := h.Journal("-o", "cat", "-u", "outrider.service", "PRIORITY="+priority)
			return strings.Contains(log, text) && strings.Contains(log, "15020")
		}
	}
	h.Eventually(time.Minute, "the journal says that the port is taken",
		says("3", "address already in use"))
	h.MustRun(t, "systemctl", "stop", "stranger.service")
	h.Eventually(time.Minute, "the journal says that it is free", says("6", "no longer: "))
	const file = "/etc/outrider/mesh.d/more.yaml"
	h.WriteText(file, brokenMesh)
	lines := func(match ...string) int {
		return len(h.journal(append(match, "CONFIG_FILE="+file)...))
	}
	h.Eventually(time.Minute, "the journal names file and line of the problem", func() bool {
		return lines("CONFIG_LINE=6", "PRIORITY=3") == 1
	})
	h.MustRun(t, "systemctl", "reload", "outrider.service")
	h.Eventually(time.Minute, "a reload beside it says so", func() bool {
		return strings.Contains(h.Journal("-o", "cat", "-u", "outrider.service"),
			"outrider: the mesh configuration has 1 error")
	})
	h.WriteText(file, strings.Replace(brokenMesh, "htpp: []", "http: [{directResponse: {status: "+
		"204}}]",
		1))
	h.Eventually(time.Minute, "the journal names the change", func() bool {
		return lines("CONFIG_LINE=1", "PRIORITY=6") == 1
	})
}

const tlsUpstream = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far}
spec:
  hosts: [far.test]
  resolution: STATIC
  ports: [{number: 8444, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: far}
spec:
  host: far.test
  trafficPolicy: {tls: {mode: SIMPLE, caCertificates: /etc/outrider/ca.pem, subjectAltNames: [far.test]}}
`

// TestProxySecrets_ShowsCertificates: `outrider proxy secrets` lists a certificate that Envoy has
// loaded.
func TestProxySecrets_ShowsCertificates(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.RunScript("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj " +
		"/CN=far-root " +
		"-keyout /dev/null -out /etc/outrider/ca.pem 2>/dev/null; chmod 0644 /etc/outrider/ca.pem")
	h.WriteText("/etc/outrider/mesh.d/far.yaml", tlsUpstream)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.Eventually(time.Minute, "the certificate is listed", func() bool {
		out := h.MustRun(t, "outrider", "proxy", "secrets")
		return strings.Contains(out, "/etc/outrider/ca.pem") || strings.Contains(out, "CN=far-root")
	})
}
