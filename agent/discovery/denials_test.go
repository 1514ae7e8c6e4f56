package discovery_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/resource"
	"outrider.org/outrider/scripts/parts"
)

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

// deniedGateway is a Gateway for one workload, and a VirtualService that answers every request with
// 200.
const deniedGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: shop}
spec: {selector: {app: %[1]s}, servers: [{port: {number: %[2]d, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: shop}
spec: {hosts: ["*"], gateways: [%[1]s], http: [{directResponse: {status: 200, body: {string: "%[3]s"}}}]}
`

// deniedPolicies are policies of the workload edge, by name. The first one denies all paths but
// /open.
var deniedPolicies = map[string]string{
	"AuthorizationPolicy": `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: edge, namespace: shop}
spec: {selector: {matchLabels: {app: edge}}, action: ALLOW, rules: [{to: [{operation: {paths: [/open]}}]}]}
`,
	"RequestAuthentication": `apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: edge, namespace: shop}
spec: {selector: {matchLabels: {app: edge}}, jwtRules: [{issuer: a, jwks: '{"keys":[{"kty":"oct","kid":"k","k":"AAAA"}]}'}]}
`,
	"PeerAuthentication": `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: edge, namespace: shop}
spec: {selector: {matchLabels: {app: edge}}, mtls: {mode: STRICT}}
`,
}

// brokenEdits are edits that make a policy invalid. whole reports whether the edit leaves unknown
// which workloads the policy selects.
var brokenEdits = []struct {
	name, old, broken string
	whole             bool
}{
	{"invalid value", "spec: {", "spec: {action: NO, mtls: NO, ", false},
	{"unknown field", "spec: {", "spec: {unknown: true, ", false},
	{"unknown key of metadata", "name: edge", "name: edge, nam: edge", false},
	{"unknown version", "security.istio.io/v1", "security.istio.io/v9", false},
	{"misspelt kind", "kind: ", "kind: My", false},
	{"no YAML", "spec: {", "spec: {{", true},
	{"no object", "apiVersion", "- apiVersion", true},
	{"invalid namespace", "namespace: shop", "namespace: SHOP", true},
}

// deniedAnswer returns status and body of the response to a request on a port, "" if there is none.
func deniedAnswer(port int, path string) string {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		return fmt.Sprint(response.StatusCode)
	}
	return string(body)
}

// answers waits until requests on a port get the expected response.
func answers(t *testing.T, what string, port int, path, want string) {
	t.Helper()
	eventually(t, what, func() (bool, string) {
		got := deniedAnswer(port, path)
		return got == want, got
	})
}

// deniedProxy returns the node of a gateway.
func deniedProxy(app string) *corev3.Node { return node("router", "shop", map[string]any{"app": app}) }

// startDenied runs the Envoy of a gateway proxy.
func startDenied(t *testing.T, app string, server *discovery.Server) *envoy {
	return startEnvoyWith(t, "router", server, func(bootstrap string) string {
		return strings.Replace(bootstrap, `"app": "edge"`, `"app": "`+app+`"`, 1)
	})
}

// resourcesOf returns the versions of a proxy's resources, except those of routes.
func resourcesOf(t *testing.T, server *discovery.Server, node *corev3.Node) map[resource.Key]string {
	t.Helper()
	feed, err := server.Feed(node)
	if err != nil {
		t.Fatal(err)
	}
	found := map[resource.Key]string{}
	snapshot, _ := feed.Current()
	for _, kind := range snapshot.Types() {
		for name, r := range snapshot.ByType(kind) {
			if kind != resource.RouteType {
				found[resource.Key{Type: kind, Name: name}] = r.Version
			}
		}
	}
	return found
}

// denies reports whether the only listener of a gateway denies everything.
func denies(t *testing.T, server *discovery.Server, app string) bool {
	t.Helper()
	feed, err := server.Feed(deniedProxy(app))
	if err != nil {
		t.Fatal(err)
	}
	snapshot, _ := feed.Current()
	listeners := slices.Collect(maps.Values(snapshot.ByType(resource.ListenerType)))
	if len(listeners) != 1 {
		t.Fatalf("%d listeners of %s", len(listeners), app)
	}
	text := string(listeners[0].EncodedMessage())
	return strings.Contains(text, "(invalid ") || strings.Contains(text, "(unreadable ")
}

// deniedRun runs a server until the returned function is called.
func deniedRun(t *testing.T, options discovery.Options) (*discovery.Server, func()) {
	t.Helper()
	server, changes := newServer(t, options)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	changes <- nil // the server receives this once it has read all files
	return server, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Tests in which a policy of each kind of security.istio.io (AuthorizationPolicy,
// RequestAuthentication, PeerAuthentication) must not become weaker:
//
//	running, reload, new epoch,    TestDenials_AreNeverWeakerThanBefore: each of brokenEdits
//	kill -9, first start           TestDenials_OverLifeOfAgent (cmd/outriderd): agent and Envoy
//	reboot                         staysClosed (scripts/machine/systemtest)
//	texts that are not understood  TestBrokenEdits_OfPolicies (store), FuzzBrokenEdit
//	refusal by Envoy               TestDenials_RefusedByEnvoy (cmd/outriderd)
//	file or directory unreadable   TestHeld_UnreadableFiles, TestFolders_Unreadable (store)
//	file system not mounted        TestAway_RetainsObjects, TestFolders_AwaitedByNextStore (store)
//	key set not available          TestKeySets_RotateUnderLoad

// TestDenials_AreNeverWeakerThanBefore makes policies of one workload invalid: while a server runs,
// over a reload, for a new epoch, and for the next agent after a kill. Each time the policies must
// stay in force, and changes of other objects must take effect. An agent that starts with an
// invalid policy and knows no earlier version must deny every request to the workload.
func TestDenials_AreNeverWeakerThanBefore(t *testing.T) {
	for _, kind := range slices.Sorted(maps.Keys(deniedPolicies)) {
		t.Run(kind, func(t *testing.T) { breakPolicy(t, kind) })
	}
}

func breakPolicy(t *testing.T, kind string) {
	directory, edge, other := t.TempDir(), parts.FreePort(t), parts.FreePort(t)
	policy, routes := filepath.Join(directory, "policy.yaml"), filepath.Join(directory, "gateway.yaml")
	good := deniedPolicies[kind]
	write(t, policy, good)
	put := func(body string) {
		write(t, routes, fmt.Sprintf(deniedGateway, "edge", edge, body)+"---\n"+
			fmt.Sprintf(deniedGateway, "other", other, body))
	}
	put("first")
	options := discovery.Options{Files: []string{directory}, Namespace: "shop",
		LastGoodFile: filepath.Join(t.TempDir(), "last-good.json")}
	server, changes := start(t, options)
	startDenied(t, "edge", server)
	startDenied(t, "other", server)
	closed := map[bool]string{true: "403", false: "first"}[kind == "AuthorizationPolicy"]
	answers(t, "/open at first", edge, "/open", "first")
	answers(t, "/closed at first", edge, "/closed", closed)
	answers(t, "the other workload at first", other, "/", "first")
	want := resourcesOf(t, server, deniedProxy("edge"))

	for _, edit := range brokenEdits {
		text := strings.Replace(good, edit.old, edit.broken, 1)
		write(t, policy, text)
		put(edit.name)
		changes <- []string{policy, routes}
		// the channel has no buffer: the server receives nil only after it has processed the
		// previous change
		changes <- nil
		answers(t, edit.name+": a change of another object", edge, "/open", edit.name)
		answers(t, edit.name+": a change of another workload", other, "/", edit.name)
		if closed != "first" {
			answers(t, edit.name, edge, "/closed", closed)
		}
		unchanged := func(when string, by *discovery.Server) {
			t.Helper()
			if got := resourcesOf(t, by, deniedProxy("edge")); !maps.Equal(got, want) {
				t.Errorf("%s: %s: %v, want %v", edit.name, when, got, want)
			}
		}
		unchanged("running, and for a new epoch", server)
		if err := server.Reload(discovery.Settings{Namespace: "shop"}); err != nil {
			t.Fatal(err)
		}
		unchanged("after a reload", server)
		// the first server still runs, so it has stored nothing on shutdown, as after kill -9
		next, end := deniedRun(t, options)
		unchanged("the next agent", next)
		end()

		firstOptions := options
		firstOptions.LastGoodFile, firstOptions.Conditions = "", condition.NewRegistry()
		first, end := deniedRun(t, firstOptions)
		if !denies(t, first, "edge") || denies(t, first, "other") != edit.whole {
			t.Errorf("%s: at the first start, edge is denied: %v, other: %v", edit.name,
				denies(t, first, "edge"), denies(t, first, "other"))
		}
		if c := firstOptions.Conditions.Conditions(); len(c) != 1 ||
			c[0].Severity != condition.Error ||
			!strings.Contains(c[0].Sentence, policy+":") || first.ResourcesWithheldReason() != "" {
			t.Errorf("%s: conditions %v, not ready because of %q", edit.name, c,
				first.ResourcesWithheldReason())
		}
		end()
	}

	// a policy is copied to another file, and the copy is edited: what either version denies is
	// denied
	write(t, policy, good)
	copied := filepath.Join(directory, "policy-new.yaml")
	write(t, copied, good)
	put("copied")
	changes <- []string{policy, copied, routes}
	answers(t, "a copy", edge, "/open", "copied")
	write(t, copied, strings.NewReplacer("STRICT", "PERMISSIVE", "/open", "/closed", "issuer: a",
		"issuer: b").Replace(good))
	changes <- []string{copied}
	answers(t, "a copy that differs", edge, "/open", "403")
	answers(t, "a copy that differs, in what it allows", edge, "/closed", "403")
	answers(t, "the other workload", other, "/", "copied")
	if err := os.Remove(policy); err != nil {
		t.Fatal(err)
	}
	changes <- []string{policy}
	answers(t, "the copy alone", edge, "/closed", "copied")
}

// TestDenials_DenyEverything starts Envoys with a policy that was never valid. Requests to a
// gateway, and requests and connections to an application, are denied until the policy is removed.
func TestDenials_DenyEverything(t *testing.T) {
	directory, edge, web, tcp := t.TempDir(), parts.FreePort(t), parts.FreePort(t), parts.FreePort(t)
	application, echo := (&backend{name: "a"}).serve(t, false), echoTCP(t, "step")
	policy := filepath.Join(directory, "policy.yaml")
	write(t, policy, strings.Replace(deniedPolicies["PeerAuthentication"], "STRICT", "STRICTER", 1))
	write(t, filepath.Join(directory, "web.yaml"), fmt.Sprintf(deniedGateway, "edge", edge, "first")+
		fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  ingress:
  - {port: {number: %d, protocol: HTTP, name: web}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%d"}
  - {port: {number: %d, protocol: TCP, name: tcp}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:%d"}
`, web, application, tcp, echo))
	server, changes := start(t, discovery.Options{Files: []string{directory}})
	startEnvoy(t, "router", server)
	startEnvoy(t, "sidecar", server)
	connected := func() (bool, string) {
		connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", tcp))
		if err != nil {
			return false, err.Error()
		}
		defer func() { _ = connection.Close() }()
		_ = connection.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(connection, "x\n")
		got, err := connection.Read(make([]byte, 1))
		return got > 0, fmt.Sprint(err)
	}
	answers(t, "the gateway", edge, "/", "403")
	answers(t, "the application", web, "/", "403")
	eventually(t, "a connection is closed", func() (bool, string) {
		ok, why := connected()
		return !ok && strings.Contains(why, "EOF"), why
	})
	if err := os.Remove(policy); err != nil {
		t.Fatal(err)
	}
	changes <- []string{policy}
	answers(t, "the gateway without the policy", edge, "/", "first")
	eventually(t, "the application without the policy", func() (bool, string) {
		got := deniedAnswer(web, "/")
		return got != "403" && got != "", got
	})
	eventually(t, "a connection without the policy", connected)
}
