package systemtest

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

var faultMesh = parts.GatewayYAML("edge", "web.test", `
- {port: {number: 80, name: http, protocol: HTTP}, hosts: [web.test]}
`+httpsServer, "- route: [{destination: {host: backend.test}}]") + `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: backend, namespace: default}
spec:
  hosts: [backend.test]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: 9000}}]
`

// faultTime bounds the time until a fault is reported, and until its reports end.
const faultTime = time.Minute

// TestFaults_AreNamedAndClear causes each fault of the table faults on an edge proxy. The status,
// the journal and a metric report the cause; for mesh configuration, so does mesh check. The proxy
// is unready only if it cannot serve. All reports end by themselves once the cause has been
// removed.
func TestFaults_AreNamedAndClear(t *testing.T) {
	t.Parallel()
	h := NewHost(t)
	h.certificate(90)
	root := pkitest.NewAuthority(t, "root", nil)
	for name, leaf := range map[string]*x509.Certificate{
		"expired": pkitest.LeafTemplate("past", -time.Minute), "soon": pkitest.LeafTemplate("soon",
			24*time.Hour)} {
		leaf.NotBefore = time.Now().Add(-30 * 24 * time.Hour)
		chain, key := root.Issue(t, leaf)
		h.WriteText("/root/"+name+".crt", string(chain))
		h.WriteText("/root/"+name+".key", string(key))
	}
	h.WriteText("/etc/outrider/conf.d/10-router.toml", "[node]\ntype = \"router\"\n")
	h.WriteText("/etc/outrider/mesh.d/web.yaml", faultMesh)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) { h.tries(t, f) })
	}
}

// tries causes a fault, checks its reports, and repairs it. It repairs it even if the test fails.
func (h *Host) tries(t *testing.T, f fault) {
	began := time.Now()
	since := "@" + strings.TrimSpace(h.MustRun(t, "date", "+%s.%N"))
	h.RunScript(f.breaks)
	said := ""
	defer func() {
		if t.Failed() {
			t.Logf("it says:\n%s", said)
			_, _ = h.Run(t.Context(), "sh", "-c", f.fixes+"; rm -f "+dropIn+" "+meshIn)
		}
	}()
	eventually(t, "outrider status names cause and cure", func() bool {
		out, err := h.Run(t.Context(), "outrider", "status")
		said = out
		return (err != nil) == f.down && containsAll(said, f.status)
	})
	if !f.heals {
		h.tells(t, f)
	}
	eventually(t, "the journal names it", func() bool {
		said = h.Journal("-o", "cat", "--since", since, "-u", "outrider*", "-u", "init.scope")
		return containsAll(said, f.journal) && (f.down || f.unready || len(f.status) == 0 ||
			strings.Contains(said, f.status[len(f.status)-1]))
	})
	if f.fixes != "" {
		h.RunScript(f.fixes)
	}
	eventually(t, "everything is clear", func() bool {
		out, err := h.Run(t.Context(), "outrider", "--json", "status")
		check, wrong := h.Run(t.Context(), "outrider", "mesh", "check")
		said = out + check
		return err == nil && wrong == nil && strings.HasSuffix(check,
			"valid") && h.EnvoyHTTPStatus() == "200" &&
			h.healthz(t) == "200" && len(h.Status().Conditions) == 0
	})
	if last := h.Status().LastReload; f.heals && last != nil && (last.Epoch == nil ||
		*last.Epoch != h.LiveEpoch().Number) {
		t.Errorf("epoch %d serves, the last reload is of %v", h.LiveEpoch().Number, last.Epoch)
	}
	h.RunScript("rm -f " + dropIn + " " + meshIn)
	eventually(t, "its files are gone", func() bool { return h.Status().State == api.StateRunning })
	t.Logf("%s: %v", f.name, time.Since(began).Round(10*time.Millisecond))
}

// tells checks the metric, readiness, mesh check and the response to a request during a fault.
func (h *Host) tells(t *testing.T, f fault) {
	if !f.down {
		metrics := h.MustRun(t, "curl", "-s", "http://127.0.0.1:15020/stats/prometheus")
		if !strings.Contains(metrics, `outrider_condition{code="`+f.code+`"`) {
			t.Errorf("no metric outrider_condition of %s", f.code)
		}
		// This is polled, because a starting Envoy may refuse the listener before it is live, and
		// the result then changes.
		want := map[bool]string{true: "503", false: "200"}[f.unready]
		eventually(t, "/healthz/ready answers "+want, func() bool { return h.healthz(t) == want })
	}
	if got := h.EnvoyHTTPStatus(); (got != "200") != f.silent {
		t.Errorf("a request gets %s", got)
	}
	if f.check == "" {
		return
	}
	out, err := h.Run(t.Context(), "outrider", "mesh", "check")
	if (err == nil) != f.warns || !strings.Contains(out, f.check) {
		t.Errorf("mesh check: %v: %s", err, out)
	}
}

// healthz returns the status code of /healthz/ready.
func (h *Host) healthz(t *testing.T) string {
	out, _ := h.Run(t.Context(), "curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}",
		"http://127.0.0.1:15020/healthz/ready")
	return out
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	parts.Eventually(t, faultTime, what, holds)
}

func containsAll(text string, all []string) bool {
	for _, part := range all {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}
