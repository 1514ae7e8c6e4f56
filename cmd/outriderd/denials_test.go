package main_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// deniedKinds has one AuthorizationPolicy, one RequestAuthentication and one PeerAuthentication for
// the same workload, by file name. Each denies one of the requests of denials.answers.
var deniedKinds = map[string]string{
	"mesh.d/access.yaml": `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: access, namespace: default}
spec: {selector: {matchLabels: {app: web}}, action: DENY, rules: [{to: [{operation: {paths: [/closed]}}]}]}
`,
	"mesh.d/tokens.yaml": `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: default}
spec: {selector: {matchLabels: {app: web}}, jwtRules: [{issuer: a, jwks: '{"keys":[{"kty":"oct","kid":"k","k":"AAAA"}]}'}]}
`,
	"mesh.d/peers.yaml": `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: peers, namespace: default}
spec: {selector: {matchLabels: {app: web}}, portLevelMtls: {%d: {mode: STRICT}}}
`,
}

// denials is a test host whose workload has two inbound HTTP listeners.
type denials struct {
	*rig.Rig
	t           *testing.T
	web, strict int // ports of the listeners
}

func newDenials(t *testing.T, toml string) denials {
	t.Helper()
	d := denials{rig.New(t, rig.Options{Race: true, TOML: "[node]\nlabels = {app = \"web\"}\n" + toml}),
		t, parts.FreePort(t), parts.FreePort(t)}
	d.WriteFile("mesh.d/sidecar.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: default}
spec:
  ingress:
  - {port: {number: %d, protocol: HTTP, name: web}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%d"}
  - {port: {number: %d, protocol: HTTP, name: strict}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%d"}
`, d.web, d.Ports.Backend, d.strict, d.Ports.Backend))
	return d
}

// put writes a policy of deniedKinds, in which old is replaced by with.
func (d denials) put(name, old, with string) {
	text := deniedKinds[name]
	if strings.Contains(text, "%d") {
		text = fmt.Sprintf(text, d.strict)
	}
	d.WriteFile(name, strings.Replace(text, old, with, 1))
}

// answers returns the responses to a permitted request, a denied one, one with an invalid token,
// and one without mutual TLS.
func (d denials) answers() string {
	return strings.Join([]string{d.answer(d.web, "/hello", ""), d.answer(d.web, "/closed", ""),
		d.answer(d.web, "/hello", "x.y.z"), d.answer(d.strict, "/hello", "")}, " ")
}

// answer returns the status code of the response to a request, or "closed".
func (d denials) answer(port int, path, token string) string {
	request, err := http.NewRequest(http.MethodGet,
		fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	if err != nil {
		d.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "closed"
	}
	_ = response.Body.Close()
	return fmt.Sprint(response.StatusCode)
}

// countsDryRun adds a policy with the annotation istio.io/dry-run. It denies nothing, and the
// agent's metrics count the requests that it would deny.
func (d denials) countsDryRun() {
	d.t.Helper()
	d.WriteFile("mesh.d/dry.yaml", `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: dry, namespace: default, annotations: {istio.io/dry-run: "true"}}
spec:
  selector: {matchLabels: {app: web}}
  action: DENY
  rules: [{to: [{operation: {paths: [/hello]}}]}]
`)
	denied := regexp.MustCompile(
		`envoy_http_rbac\{.*authz_dry_run_action="deny",authz_dry_run_result="denied"\} [1-9]`)
	rig.Eventually(d.t, time.Minute, "what a dry run denies is counted", func() bool {
		if status := d.answer(d.web, "/hello", ""); status != "200" {
			d.t.Errorf("GET /hello: %s", status)
		}
		_, metrics, err := d.GetHostThroughEnvoy("localhost", d.Ports.Status, "/stats/prometheus")
		return err == nil && denied.MatchString(metrics)
	})
}

// TestDenials_OverLifeOfAgent breaks one policy of each kind. The previous policies remain in force
// while the agent runs, after a reload to a new epoch, after the agent was killed, and with the
// next agent. An agent that starts without state denies everything instead.
func TestDenials_OverLifeOfAgent(t *testing.T) {
	t.Parallel()
	d := newDenials(t, "")
	r, answers := d.Rig, d.answers
	put := func(old, broken string) {
		for name := range deniedKinds {
			d.put(name, old, broken)
		}
	}
	const want = "200 403 401 closed"
	put("", "")
	r.StartReady()
	rig.Eventually(t, time.Minute, "the policies are in force",
		func() bool { return answers() == want })
	d.countsDryRun()
	broken := [][2]string{{"spec: {", "spec: {unknown: true, "}, {"security.istio.io/v1",
		"security.istio.io/v9"}, {"spec: {", "spec: {{"}}
	for _, edit := range broken {
		check := func(when string) {
			t.Helper()
			if got := answers(); got != want {
				t.Errorf("%s: %s: %s, want %s", edit[1], when, got, want)
			}
		}
		put(edit[0], edit[1])
		rig.Eventually(t, time.Minute, "all three are reported", func() bool {
			result := r.RunOutrider("mesh", "check")
			all := result.Stdout + result.Stderr
			return !slices.ContainsFunc([]string{"access", "tokens", "peers"}, func(name string) bool {
				return !strings.Contains(all, filepath.Join(r.Dir, "mesh.d", name+".yaml")+":")
			})
		})
		check("running")
		if result := r.RunOutrider("reload"); result.ExitCode != 0 {
			t.Fatalf("reload: %+v", result)
		}
		check("after a reload")
		r.KillAgent()
		check("without an agent")
		r.StartReady()
		check("the next agent")
	}
	r.Daemon().Process.Signal(os.Interrupt) //nolint:errcheck // Wait detects a failure
	r.Daemon().Wait(t, 60*time.Second)
	if err := os.RemoveAll(filepath.Join(r.Dir, "state")); err != nil {
		t.Fatal(err)
	}
	put(broken[0][0], broken[0][1])
	r.StartReady()
	if got := answers(); got != "403 403 403 403" {
		t.Errorf("an agent that knows nothing else: %s", got)
	}
}
