package main_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// TestExplain_OfRunningAgent: `outrider mesh explain` shows how the running Envoy would process
// requests, and the file and line of each object that is involved.
func TestExplain_OfRunningAgent(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true, Mesh: map[string]string{"routes.yaml": `# the first line
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: default}
spec:
  hosts: [web.test]
  http:
  - match: [{uri: {exact: /gone}}]
    directResponse: {status: 410}
  - route: [{destination: {host: web.test}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: default}
spec: {host: web.test, trafficPolicy: {loadBalancer: {simple: RANDOM}}}
`}})
	r.StartReady()
	web := filepath.Join(r.Dir, "mesh.d", "web.yaml") + ":1"
	route := filepath.Join(r.Dir, "mesh.d", "routes.yaml") + ":2"
	rule := filepath.Join(r.Dir, "mesh.d", "routes.yaml") + ":12"
	cluster := fmt.Sprintf("outbound|%d||web.test", r.Ports.HTTP)

	for _, test := range []struct {
		path    string
		status  int
		outcome string
		decides []string
	}{
		{"/x", 200, "forwarded", []string{cluster, web, route, rule, fmt.Sprintf("127.0.0.1:%d",
			r.Ports.Backend)}},
		{"/gone", 410, "410", []string{route}},
	} {
		if code, _, err := r.GetThroughEnvoy(test.path); err != nil || code != test.status {
			t.Errorf("GET %s: %d %v", test.path, code, err)
		}
		told := r.RunOutrider("mesh", "explain", fmt.Sprintf("web.test:%d%s", r.Ports.HTTP, test.path))
		if told.ExitCode != 0 || !strings.Contains(told.Stdout, test.outcome) || told.Stderr != "" {
			t.Errorf("explain %s: exit %d: %s%s", test.path, told.ExitCode, told.Stdout, told.Stderr)
		}
		for _, want := range test.decides {
			if !strings.Contains(told.Stdout, want) {
				t.Errorf("explain %s does not tell %s: %s", test.path, want, told.Stdout)
			}
		}
	}
	if told := r.RunOutrider("mesh", "explain", "web.test:1"); told.ExitCode != api.ExitRefused {
		t.Errorf("explain of a port where nothing listens: exit %d: %s", told.ExitCode, told.Stdout)
	}

	for _, test := range []struct{ command, name, from string }{
		{"clusters", cluster, rule},
		{"listeners", fmt.Sprintf("127.0.0.1_%d", r.Ports.HTTP), web},
		{"routes", "answer 410", strings.TrimSuffix(route, "2") + "8"},
		{"routes", "outbound|", strings.TrimSuffix(route, "2") + "10"},
		{"endpoints", cluster, web},
	} {
		told := r.RunOutrider("proxy", test.command, "-o", "wide")
		found := false
		for line := range strings.Lines(told.Stdout) {
			found = found || strings.Contains(line, test.name) && strings.Contains(line, test.from)
		}
		if told.ExitCode != 0 || !found {
			t.Errorf("proxy %s: exit %d: no line with %s and %s: %s%s", test.command, told.ExitCode,
				test.name, test.from, told.Stdout, told.Stderr)
		}
	}

	if told := r.RunOutrider("mesh", "check"); told.ExitCode != 0 || !strings.Contains(told.Stdout,
		"valid") {
		t.Errorf("check: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	r.WriteFile("mesh.d/bad.yaml",
		"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: bad}\nspec: "+
			"{hosts: ['a b'], http: [{directResponse: {status: 200}}]}\n")
	rig.Eventually(t, time.Minute, "the agent has read the bad file",
		func() bool { return r.RunOutrider("mesh", "check").ExitCode == api.ExitRefused })
	if told := r.RunOutrider("mesh", "check"); !strings.Contains(told.Stderr,
		filepath.Join(r.Dir, "mesh.d", "bad.yaml")+
			":4: VirtualService default/bad: spec.hosts[0]") {
		t.Errorf("check: %s%s", told.Stdout, told.Stderr)
	}
	if code, _, err := r.GetThroughEnvoy("/gone"); err != nil || code != 410 {
		t.Errorf("GET beside a bad object: %d %v", code, err)
	}
}

// TestDenial_OfInvalidPolicy starts an agent with an invalid policy. It is ready, and reports that
// it denies the requests to which the policy may apply.
func TestDenial_OfInvalidPolicy(t *testing.T) {
	t.Parallel()
	r := rig.New(t,
		rig.Options{Race: true,
			Mesh: map[string]string{"policy.yaml": `apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: authorizer, namespace: default}
spec: {phase: AUTHZ}
`}})
	r.StartReady()
	const named = "WasmPlugin default/authorizer: every request to its whole namespace is denied, " +
		"because no valid version of it is known"
	if code, _, err := r.GetThroughEnvoy("/"); code != http.StatusOK {
		t.Errorf("a request that goes out: %d, %v", code, err)
	}
	if told := r.RunOutrider("status"); !strings.Contains(told.Stdout, named) {
		t.Errorf("status: %s%s", told.Stdout, told.Stderr)
	}
	if told := r.RunOutrider("mesh", "check"); told.ExitCode != api.ExitRefused ||
		!strings.Contains(told.Stderr, named) {
		t.Errorf("check: exit %d: %s%s", told.ExitCode, told.Stdout, told.Stderr)
	}
	if said := r.Daemon().Output(); !strings.Contains(said, named) {
		t.Errorf("the log: %s", said)
	}
	r.WriteFile("mesh.d/policy.yaml", "# none\n")
	r.WaitReady(30 * time.Second)
	rig.Eventually(t, time.Minute, "requests are answered",
		func() bool { code, _, err := r.GetThroughEnvoy("/"); return err == nil && code == 200 })
}
