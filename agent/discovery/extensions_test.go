package discovery_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/discovery/explain"
	"outrider.org/outrider/agent/wasm/wasmtest"
)

// extensionMesh has a gateway for HTTP on port %[1]d and for TCP on port %[2]d, which forwards to
// port %[3]d.
const extensionMesh = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec: {selector: {app: edge}, servers: [{port: {number: %[1]d, name: http, protocol: HTTP}, hosts: ["*"]}, {port: {number: %[2]d, name: tcp, protocol: TCP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge}
spec: {hosts: ["*"], gateways: [edge], http: [{route: [{destination: {host: a.test}}]}], tcp: [{route: [{destination: {host: a.test}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a}
spec: {hosts: [a.test], addresses: [127.0.0.1], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]}
---
`

// plugin returns a WasmPlugin.
func plugin(name, spec string) string {
	return fmt.Sprintf("apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\n"+
		"metadata: {name: %s}\nspec: {%s}\n---\n", name, spec)
}

// extensionRig is a gateway whose extensions change.
type extensionRig struct {
	t          *testing.T
	server     *discovery.Server
	changes    chan<- []string
	file, mesh string
	port, tcp  int
	requests   atomic.Int64 // requests to the server of the modules
	modules    *httptest.Server
	// how the server of the modules answers; nil: with the files in folder
	handle atomic.Pointer[http.HandlerFunc]
	folder string
}

func newExtensionRig(t *testing.T, state string) *extensionRig {
	r := &extensionRig{t: t, folder: t.TempDir()}
	ports := freePorts(t, 2)
	r.port, r.tcp = ports[0], ports[1]
	r.mesh = fmt.Sprintf(extensionMesh, r.port, r.tcp, headerBackend(t))
	folder := t.TempDir()
	r.file = filepath.Join(folder, "mesh.yaml")
	write(t, r.file, r.mesh)
	r.modules = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.requests.Add(1)
		if h := r.handle.Load(); h != nil {
			(*h)(w, q)
			return
		}
		http.FileServer(http.Dir(r.folder)).ServeHTTP(w, q)
	}))
	t.Cleanup(r.modules.Close)
	r.server, r.changes = start(t, discovery.Options{Files: []string{folder}, Namespace: "shop",
		FetchWasmModules: true, WasmModuleCacheFile: filepath.Join(state, "modules")})
	return r
}

// module writes a module and returns its path.
func (r *extensionRig) module(name string, content []byte) string {
	path := filepath.Join(r.folder, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// apply writes the mesh file with the extensions, and makes the server read it.
func (r *extensionRig) apply(plugins ...string) {
	write(r.t, r.file, r.mesh+strings.Join(plugins, ""))
	r.changes <- []string{r.file}
}

// answers waits for the answer to a request: the status and the header X-Order that the backend
// received.
func (r *extensionRig) answers(want string) {
	r.t.Helper()
	eventually(r.t, "the answer "+want, func() (bool, string) {
		got := askWith(r.port, "/", nil)
		return got == want, got
	})
}

// reports waits for a problem that contains a text; "": for no problem.
func (r *extensionRig) reports(part string) {
	r.t.Helper()
	eventually(r.t, "the problem "+part, func() (bool, string) {
		var all []string
		for _, p := range r.server.Problems() {
			all = append(all, p.String())
		}
		got := strings.Join(all, "\n")
		return part == "" && got == "" || part != "" && strings.Contains(got, part), got
	})
}

// explains compares the explanation of a request with texts that it must contain.
func (r *extensionRig) explains(parts ...string) {
	r.t.Helper()
	node := &corev3.Node{Id: "router~127.0.0.1~vm.shop~shop.svc.cluster.local"}
	node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
		"NAMESPACE": textValue("shop"), "LABELS": structpb.NewStructValue(&structpb.Struct{
			Fields: map[string]*structpb.Value{"app": textValue("edge")}})}}
	said, err := r.server.Explain(node, explain.Request{Host: "any.test", Port: uint32(r.port)},
		explain.EnvoyState{})
	text := fmt.Sprintf("%+v", said)
	for _, part := range parts {
		if err != nil || !strings.Contains(text, part) {
			r.t.Errorf("%v, no %q in %s", err, part, text)
		}
	}
}

// headerBackend starts a server that responds with the value of the request's header X-Order.
func headerBackend(t *testing.T) int {
	b := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.WriteString(w, strings.Join(q.Header.Values("X-Order"), " "))
	})
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	var port int
	_, _ = fmt.Sscanf(server.URL, "http://127.0.0.1:%d", &port)
	return port
}

func TestExtensions_InEnvoy(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	for _, name := range []string{"a", "b", "c", "d"} {
		r.module(name, wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "x-order", name))
	}
	file := func(name string) string { return "url: file://" + filepath.Join(r.folder, name) }
	e := startEnvoy(t, "router", r.server)
	e.listens(t)
	r.answers("200 ")

	r.apply(plugin("one", file("a")), plugin("two", file("b")+", phase: STATS"),
		plugin("three", file("c")+", phase: AUTHN"),
		plugin("four", file("d")+", phase: STATS, priority: 10"))
	r.answers("200 c d b a")
	r.reports("")
	r.explains("WasmPlugin shop/one", "WasmPlugin shop/two", "what WasmPlugin shop/one does")

	// an extension applies only to the ports, modes and proxies that it matches
	r.apply(plugin("one", file("a")+", match: [{mode: SERVER}]"),
		plugin("two", fmt.Sprintf("%s, match: [{ports: [{number: %d}]}]", file("b"), r.port)),
		plugin("three", file("c")+", match: [{mode: CLIENT, ports: [{number: 1}]}]"),
		plugin("four", file("d")+", selector: {matchLabels: {app: other}}"))
	r.answers("200 b")

	// without its module, an extension fails as its failStrategy says, except that an extension of
	// the phase AUTHZ never fails open
	missing := file("none")
	r.apply(plugin("one", file("a")), plugin("open", missing+", failStrategy: FAIL_OPEN"))
	r.answers("200 a")
	r.reports("WasmPlugin shop/open: spec.url: its module cannot be fetched: open")
	r.apply(plugin("one", file("a")), plugin("closed", missing))
	r.answers("403 RBAC: access denied")
	r.reports("everything that it is for is denied")
	r.explains("denied, as the module of WasmPlugin shop/closed is not there")
	r.apply(plugin("one", file("a")),
		plugin("authz", missing+", failStrategy: FAIL_OPEN, phase: AUTHZ"))
	r.answers("403 RBAC: access denied")
	r.apply(plugin("one", file("a")))
	r.answers("200 a")
	r.reports("")

	// if the module of a changed extension is missing, the extension's previous version remains
	r.apply(plugin("one", missing))
	r.reports("its former version remains in force")
	r.answers("200 a")
	r.apply()
	r.answers("200 ")

	// a module that Envoy refuses has the effects of a missing one
	r.module("bad", []byte("\x00asm\x01\x00\x00\x00garbage"))
	r.apply(plugin("bad", file("bad")+", phase: AUTHZ"))
	r.reports("WasmPlugin shop/bad")
	r.answers("403 RBAC: access denied")
	r.apply(plugin("badopen", file("bad")+", failStrategy: FAIL_OPEN"))
	r.answers("200 ")
	r.apply()
	r.reports("")

	// an invalid Lua script has no effect on requests, or in the phase AUTHZ denies them
	lua := func(name, spec string) string {
		return strings.Replace(plugin(name, spec), "WasmPlugin", "TrafficExtension", 1)
	}
	const code = `lua: {inlineCode: "function envoy_on_request(h) h:headers():add('x-order', 'lua') end"}`
	r.apply(lua("script", code), plugin("one", file("a")+", priority: 1"))
	r.answers("200 a lua")
	r.apply(lua("script", "lua: {inlineCode: 'function'}"), plugin("one", file("a")+", priority: 1"))
	r.reports("TrafficExtension shop/script: ")
	r.answers("200 a lua")
	r.apply(lua("other", "lua: {inlineCode: 'function'}"))
	r.reports("TrafficExtension shop/other: ")
	r.answers("200 ")
	r.apply(lua("guard", "lua: {inlineCode: 'function'}, phase: AUTHZ"))
	r.answers("403 RBAC: access denied")
	r.apply(lua("remote", "wasm: {"+file("b")+"}, phase: AUTHN"))
	r.answers("200 b")
	r.apply(lua("remote", code+", phase: AUTHN")) // a script replaces a module
	r.answers("200 lua")
	r.reports("")
	r.apply(lua("remote", "wasm: {"+file("a")+"}, phase: AUTHN"))
	r.answers("200 a")
	r.apply()
	r.reports("")

	// a network filter closes connections
	r.module("close", wasmtest.ConnectionClosingModule())
	eventually(t, "a connection is forwarded", func() (bool, string) {
		got := askWith(r.tcp, "/", nil)
		return got == "200 ", got
	})
	r.apply(plugin("close", file("close")+fmt.Sprintf(
		", type: NETWORK, match: [{ports: [{number: %d}]}]", r.tcp)))
	eventually(t, "a connection is closed", func() (bool, string) {
		got := askWith(r.tcp, "/", nil)
		return !strings.HasPrefix(got, "200"), got
	})
	r.answers("200 ")

	// an extension whose Wasm VM fails at each request
	r.module("fails", wasmtest.TrappingModule())
	r.apply(plugin("fails", file("fails")))
	r.answers("503 ")
	r.apply(plugin("failsopen", file("fails")+", failStrategy: FAIL_OPEN"))
	r.answers("200 ")
}

// TestExtensions_WhileTheModuleIsFetched adds extensions while the server of their modules does not
// answer. A running proxy serves without them, and other changes take effect. A proxy that starts
// denies requests.
func TestExtensions_WhileTheModuleIsFetched(t *testing.T) {
	live, starting := newExtensionRig(t, t.TempDir()), newExtensionRig(t, t.TempDir())
	release := make(chan struct{})
	added := map[*extensionRig]string{}
	for _, r := range []*extensionRig{live, starting} {
		r.module("a", wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "x-order", "a"))
		slow := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			select {
			case <-release:
			case <-q.Context().Done():
			}
			http.FileServer(http.Dir(r.folder)).ServeHTTP(w, q)
		})
		r.handle.Store(&slow)
		added[r] = plugin("one", "url: "+r.modules.URL+"/a")
	}
	const pending = "WasmPlugin shop/one: spec.url: it takes effect once its module is there"

	startEnvoy(t, "router", live.server).listens(t)
	live.answers("200 ")
	live.apply(added[live])
	live.reports(pending)
	live.answers("200 ")
	live.apply(added[live], plugin("two", "url: file://"+filepath.Join(live.folder, "none")))
	live.answers("403 RBAC: access denied")
	live.apply(added[live])
	live.answers("200 ")

	// an extension in the phase AUTHZ that replaces another one denies requests until it is fetched
	live.apply(plugin("guard", "phase: AUTHZ, url: file://"+filepath.Join(live.folder, "none")))
	live.answers("403 RBAC: access denied")
	live.apply(plugin("other", "phase: AUTHZ, url: "+live.modules.URL+"/a"))
	live.reports("WasmPlugin shop/other: spec.url: its module is being fetched; until then " +
		"everything that it is for is denied")
	live.answers("403 RBAC: access denied")
	live.apply()
	live.reports("")
	live.apply(added[live])
	live.reports(pending)

	starting.apply(added[starting])
	startEnvoy(t, "router", starting.server).listens(t)
	starting.answers("403 RBAC: access denied")
	starting.reports("until then everything that it is for is denied")

	close(release)
	for _, r := range []*extensionRig{live, starting} {
		r.answers("200 a")
		r.reports("")
	}
}
