package discovery_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

// unsupported restricts access, and its kind is not supported.
const unsupported = `apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: authorizer, namespace: shop}
spec: {url: file:///authorizer.wasm, phase: AUTHZ}
`

// answering is a Gateway that answers every request with 200.
const answering = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: shop}
spec: {servers: [{port: {number: %[2]d, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: shop}
spec: {hosts: ["*"], gateways: [%[1]s], http: [{directResponse: {status: 200}}]}
`

// answer returns the status of a response, 0 if there is none.
func answer(port int) int {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// TestRestriction_ServesNothingWithoutLastGood starts a real Envoy with files that deny everything:
// it must have no listener until the policy is removed.
func TestRestriction_ServesNothingWithoutLastGood(t *testing.T) {
	for _, kind := range []string{"router", "REDIRECT"} {
		t.Run(kind, func(t *testing.T) {
			directory, port := t.TempDir(), parts.FreePort(t)
			policy := filepath.Join(directory, "policy.yaml")
			write(t, policy, unsupported)
			write(t, filepath.Join(directory, "gateway.yaml"), fmt.Sprintf(answering, "edge", port))
			board := condition.NewBoard()
			server, changes := start(t, discovery.Options{Files: []string{directory}, Board: board})
			e := startEnvoy(t, kind, server)
			e.listens(t)
			if got := e.Stat("listener_manager.total_listeners_active"); got != 0 {
				t.Errorf("%d listeners", got)
			}
			if got := answer(port); got != 0 {
				t.Errorf("a request that nobody may send: %d", got)
			}
			if why := server.Closed(); !strings.Contains(why,
				"policy.yaml:1: WasmPlugin shop/authorizer: kind WasmPlugin restricts access") {
				t.Errorf("closed: %q", why)
			}
			if conditions := board.Conditions(); len(conditions) != 1 ||
				conditions[0].Severity != condition.Error ||
				!strings.Contains(conditions[0].Sentence, "WasmPlugin restricts access") {
				t.Errorf("conditions %v", conditions)
			}
			write(t, policy, "")
			changes <- []string{policy}
			changes <- nil // taken once the one before is done
			if why := server.Closed(); why != "" {
				t.Errorf("still closed: %s", why)
			}
			eventually(t, "there are listeners", func() (bool, string) {
				n := e.Stat("listener_manager.total_listeners_active")
				return n > 0, fmt.Sprint(n)
			})
			if kind == "router" {
				eventually(t, "requests are answered", func() (bool, string) {
					got := answer(port)
					return got == 200, fmt.Sprint(got)
				})
			}
		})
	}
}

// TestRestriction_ServesStateBefore adds a policy, and a listener that it would forbid, to
// served files.
func TestRestriction_ServesStateBefore(t *testing.T) {
	directory, port, added := t.TempDir(), parts.FreePort(t), parts.FreePort(t)
	write(t, filepath.Join(directory, "gateway.yaml"), fmt.Sprintf(answering, "edge", port))
	var log parts.Log
	server, changes := start(t, discovery.Options{Files: []string{directory},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	e := startEnvoy(t, "router", server)
	eventually(t, "requests are answered", func() (bool, string) {
		got := answer(port)
		return got == 200, fmt.Sprint(got)
	})

	policy, more := filepath.Join(directory, "policy.yaml"), filepath.Join(directory, "more.yaml")
	write(t, policy, unsupported)
	write(t, more, fmt.Sprintf(answering, "more", added))
	changes <- []string{policy, more}
	changes <- nil // taken once the one before is done
	feed := feedOf(t, server, "router")
	snapshot, _ := feed.Current()
	if listeners := snapshot.Set(resource.ListenerType); len(listeners) != 1 {
		t.Errorf("%d listeners, want the one before the policy", len(listeners))
	}
	if got := answer(port); got != 200 {
		t.Errorf("what was served before: %d", got)
	}
	if got := answer(added); got != 0 {
		t.Errorf("what came with the policy: %d", got)
	}
	if why := server.Closed(); why != "" {
		t.Errorf("closed: %s", why)
	}
	const change = `msg="mesh object added" object="Gateway shop/more"`
	if strings.Contains(log.String(), change) {
		t.Error("a change that takes no effect is logged")
	}

	write(t, policy, "a: [") // the policy may be in it still
	changes <- []string{policy}
	changes <- nil
	if got := answer(added); got != 0 {
		t.Errorf("what came with the policy, whose file cannot be read now: %d", got)
	}
	write(t, policy, strings.Replace(unsupported, "AUTHZ", "STATS", 1)) // which restricts nothing
	changes <- []string{policy}
	eventually(t, "what was withheld is served", func() (bool, string) {
		got := answer(added)
		return got == 200, fmt.Sprint(got)
	})
	if n := e.Stat("listener_manager.total_listeners_active"); n != 2 {
		t.Errorf("%d listeners", n)
	}
	if !strings.Contains(log.String(), change) {
		t.Errorf("the change is not logged once it takes effect:\n%s", log.String())
	}
}

// TestRestriction_NextServerServesLastGood restarts the server while the files have a policy.
func TestRestriction_NextServerServesLastGood(t *testing.T) {
	l := newRuns(t)
	a, b := fmt.Sprintf(webEntry, "a", "10.0.0.1"), fmt.Sprintf(webEntry, "b", "10.0.0.2")
	restricts, unread := "kind WasmPlugin restricts access", "not valid YAML"
	l.put("", "connectTimeout: 10s\n")
	l.put("a.yaml", a)
	l.next()
	l.expect("at first", "a 10s", false)
	l.put("policy.yaml", unsupported)
	l.put("b.yaml", b)
	l.expect("a policy came", "a 10s", true, restricts)
	l.put("a.yaml", "")
	l.expect("what was there goes", "a 10s", true, restricts)
	for range 2 {
		l.next()
		l.expect("after a restart", "a 10s", true, restricts)
	}
	l.end()
	write(t, filepath.Join(l.objects, "policy.yaml"), "a: [")
	l.next()
	l.expect("restarted with a policy that cannot be read", "a 10s", true, unread)
	l.put("policy.yaml", "")
	l.expect("the policy is gone", "b 10s", false)
}
