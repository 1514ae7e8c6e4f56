package discovery_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"outrider.org/outrider/agent/wasm/wasmtest"
)

// moving is a version of an extension that moves between phases, kinds and fail strategies.
type moving struct {
	kind            string // http, network or lua
	restricts, open bool
	good            bool // Envoy accepts the code
}

// variant returns m with only the properties on which the name of its configuration in Envoy
// depends. Versions with equal variants replace each other in place.
func (m moving) variant() moving {
	m.good, m.open = false, m.open && m.kind != "lua"
	if m.kind == "lua" {
		m.kind = "http"
	}
	return m
}

// passes reports whether traffic passes while Envoy has accepted no code of the extension.
func (m moving) passes() bool { return !m.restricts && (m.open || m.kind == "lua") }

// object returns the object with the n-th version of the code.
func (m moving) object(r *extensionRig, n int) string {
	port := r.port
	if m.kind == "network" {
		port = r.tcp
	}
	spec := fmt.Sprintf("match: [{ports: [{number: %d}]}]", port)
	if m.restricts {
		spec += ", phase: AUTHZ"
	}
	switch {
	case m.kind == "lua" && m.good:
		spec += fmt.Sprintf(", lua: {inlineCode: \"function envoy_on_request(h) "+
			"h:headers():add('x-order', '%d') end\"}", n)
	case m.kind == "lua":
		spec += fmt.Sprintf(", lua: {inlineCode: 'function %d'}", n)
	default:
		code := fmt.Appendf([]byte("\x00asm\x01\x00\x00\x00"), "garbage%d", n)
		if m.good {
			code = wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "x-order", fmt.Sprint(n))
		}
		spec += fmt.Sprintf(", wasm: {url: 'file://%s', type: %s, failStrategy: %s}",
			r.module(fmt.Sprintf("moving%d", n), code),
			map[bool]string{true: "NETWORK", false: "HTTP"}[m.kind == "network"],
			map[bool]string{true: "FAIL_OPEN", false: "FAIL_CLOSE"}[m.open])
	}
	return strings.Replace(plugin("moving", spec), "WasmPlugin", "TrafficExtension", 1)
}

// listenersNaming waits until both listeners that Envoy uses contain an extension's name, and Envoy
// has refused no listener.
func (r *extensionRig) listenersNaming(e *envoy, extension string) {
	r.t.Helper()
	eventually(r.t, "listeners with "+extension, func() (bool, string) {
		var dump struct {
			Configs []struct {
				Active json.RawMessage `json:"active_state"`
				Error  json.RawMessage `json:"error_state"`
			}
		}
		text := e.Get("/config_dump?resource=dynamic_listeners")
		if err := json.Unmarshal([]byte(text), &dump); err != nil {
			return false, err.Error()
		}
		naming := 0
		for _, listener := range dump.Configs {
			if len(listener.Error) > 0 {
				return false, string(listener.Error)
			}
			if strings.Contains(string(listener.Active), extension) {
				naming++
			}
		}
		return naming == 2, fmt.Sprintf("%d listeners", naming)
	})
}

// TestExtensions_Move moves an extension between phases, kinds and fail strategies, with code that
// Envoy accepts or refuses. If Envoy refuses the code of an extension that restricts access,
// everything is denied, unless Envoy accepted another version of the same kind, phase and fail
// strategy before. Other changes of the listeners take effect.
func TestExtensions_Move(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	e := startEnvoy(t, "router", r.server)
	e.listens(t)
	r.answers("200 ")
	noop := r.module("noop", wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "x-unused", ""))

	var all, steps []moving
	for _, kind := range []string{"http", "network", "lua"} {
		for bits := range 8 {
			m := moving{kind, bits&1 != 0, bits&2 != 0, bits&4 != 0}
			if kind != "lua" || !m.open {
				all = append(all, m)
			}
		}
	}
	// pairs of versions whose code Envoy refuses: under the first, traffic passes without the code;
	// the second restricts access, so traffic must be denied
	for _, from := range all {
		for _, to := range all {
			if from.passes() && !from.good && to.restricts && !to.good {
				steps = append(steps, from, to)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		steps = append(steps, all[random.IntN(len(all))])
	}
	accepted := map[moving]int{} // last accepted version of the code of a variant
	for n, m := range steps {
		want := map[string]string{"http": "200 ", "network": "200 "}
		if m.good {
			accepted[m.variant()] = n
		}
		switch last, ok := accepted[m.variant()]; {
		case m.kind == "network" && !ok && !m.passes():
			want["network"] = "denied"
		case m.kind == "network":
		case ok:
			want["http"] = fmt.Sprintf("200 %d", last)
		case !m.passes():
			want["http"] = "403 RBAC: access denied"
		}
		for again := range 2 {
			other := fmt.Sprintf("other-%d-%d", n, again)
			r.apply(m.object(r, n), plugin(other+"-http", fmt.Sprintf("url: 'file://%s', match: "+
				"[{ports: [{number: %d}]}]", noop, r.port)), plugin(other+"-network", fmt.Sprintf(
				"url: 'file://%s', type: NETWORK, match: [{ports: [{number: %d}]}]", noop, r.tcp)))
			r.listenersNaming(e, other)
			for range 3 {
				r.answers(want["http"])
				eventually(t, "connections "+want["network"], func() (bool, string) {
					got := askWith(r.tcp, "/", nil)
					return (want["network"] == "denied") != strings.HasPrefix(got, "200"), got
				})
			}
		}
		if t.Failed() {
			return
		}
	}
	e.nacks.mu.Lock()
	defer e.nacks.mu.Unlock()
	for _, refusal := range e.nacks.all {
		if !strings.Contains(refusal, "TypedExtensionConfig") {
			t.Error(refusal)
		}
	}
}

// TestExtensions_MoveWhileTheModuleIsFetched moves an extension to the phase AUTHZ, with a new
// module whose server does not answer. Until the module is fetched, Envoy runs the previous version
// in the previous phase.
func TestExtensions_MoveWhileTheModuleIsFetched(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	tag := func(name string) string {
		return "url: 'file://" + r.module(name, wasmtest.HeaderModule(wasmtest.RequestHeaderMap,
			"x-order",
			name)) + "'"
	}
	startEnvoy(t, "router", r.server).listens(t)
	former := plugin("one", tag("a")+", failStrategy: FAIL_OPEN")
	r.apply(former)
	r.answers("200 a")

	release := make(chan struct{})
	slow := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-release:
		case <-q.Context().Done():
		}
		http.FileServer(http.Dir(r.folder)).ServeHTTP(w, q)
	})
	r.handle.Store(&slow)
	moved := func(module string) string {
		return plugin("one", "phase: AUTHZ, url: "+r.modules.URL+"/"+module)
	}
	other := plugin("two", tag("b")+", priority: -1")
	tag("c")
	r.apply(moved("c"), other)
	r.reports("WasmPlugin shop/one: spec.url: it takes effect once its module is there")
	r.answers("200 b a")
	r.apply(former, other) // the previous version again, in its previous phase
	r.reports("")
	r.answers("200 b a")
	r.apply(moved("c"))
	r.reports("WasmPlugin shop/one: spec.url: it takes effect once its module is there")
	r.answers("200 a")
	close(release)
	r.answers("200 c")
	r.reports("")
	r.apply(former)
	r.answers("200 a")
	r.apply(moved("none"))
	r.answers("403 RBAC: access denied")
	r.reports("everything that it is for is denied")
}

// TestExtensions_SwappedPhases: two extensions swap their phases. The module of the one that moves
// to AUTHZ must be fetched first, and until then requests are denied.
func TestExtensions_SwappedPhases(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	tag := func(name string) string {
		return "url: 'file://" + r.module(name, wasmtest.HeaderModule(wasmtest.RequestHeaderMap,
			"x-order",
			name)) + "'"
	}
	startEnvoy(t, "router", r.server).listens(t)
	r.apply(plugin("one", tag("a")), plugin("two", "phase: AUTHZ, "+tag("b")))
	r.answers("200 b a")
	release := make(chan struct{})
	slow := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-release:
		case <-q.Context().Done():
		}
		http.FileServer(http.Dir(r.folder)).ServeHTTP(w, q)
	})
	r.handle.Store(&slow)
	tag("c")
	r.apply(plugin("one", "phase: AUTHZ, url: "+r.modules.URL+"/c"), plugin("two", tag("b")))
	eventually(t, "requests are denied", func() (bool, string) {
		got := askWith(r.port, "/", nil)
		if got != "200 b a" && !strings.HasPrefix(got, "403 ") {
			t.Errorf("unguarded: %s", got)
		}
		return strings.HasPrefix(got, "403 "), got
	})
	close(release)
	r.answers("200 c b")
}

// TestExtensions_RefusedBeforeEnvoyStarts starts a second Envoy after the first one has refused an
// extension of the phase AUTHZ. The second Envoy denies requests, too.
func TestExtensions_RefusedBeforeEnvoyStarts(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	bad := r.module("bad", []byte("\x00asm\x01\x00\x00\x00garbage"))
	r.apply(plugin("open", "failStrategy: FAIL_OPEN, url: 'file://"+bad+"'"))
	first := startEnvoy(t, "router", r.server)
	first.listens(t)
	r.answers("200 ")
	r.apply(plugin("open", "failStrategy: FAIL_OPEN, phase: AUTHZ, url: 'file://"+bad+"'"))
	r.reports("WasmPlugin shop/open")
	r.answers("403 RBAC: access denied")
	second := startEnvoy(t, "router", r.server)
	second.listens(t)
	first.Kill()
	r.answers("403 RBAC: access denied")
	r.apply()
	r.answers("200 ")
}

// TestExtensions_RemovalDeniesNothing removes an extension while clients send requests, and no
// request fails. A listener that still referred to the removed extension would deny requests.
func TestExtensions_RemovalDeniesNothing(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	startEnvoy(t, "router", r.server).listens(t)
	r.apply(plugin("one", "url: 'file://"+r.module("a",
		wasmtest.HeaderModule(wasmtest.RequestHeaderMap,
			"x-order", "a"))+"'"))
	r.answers("200 a")
	done, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		for {
			select {
			case <-done:
				return
			default:
			}
			if got := askWith(r.port, "/", nil); !strings.HasPrefix(got, "200 ") {
				t.Error(got)
			}
		}
	}()
	r.apply()
	r.answers("200 ")
	close(done)
	<-asked
}

// TestExtensions_EnvoyFilterByName: an EnvoyFilter that names the filter of an extension by Istio's
// name can remove the filter.
func TestExtensions_EnvoyFilterByName(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	startEnvoy(t, "router", r.server).listens(t)
	extensions := plugin("one", "phase: AUTHZ, failStrategy: FAIL_OPEN, url: 'file://"+r.module("a",
		wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "x-order", "a"))+"'") +
		plugin("two", fmt.Sprintf("type: NETWORK, match: [{ports: [{number: %d}]}], url: 'file://%s'",
			r.tcp, r.module("close", wasmtest.ConnectionClosingModule())))
	forwards := func(want bool) {
		eventually(t, "connections", func() (bool, string) {
			got := askWith(r.tcp, "/", nil)
			return strings.HasPrefix(got, "200") == want, got
		})
	}
	r.apply(extensions)
	r.answers("200 a")
	forwards(false)
	const name = "extensions.istio.io/trafficextension/shop.%s~istio-translated-wasmplugin"
	r.apply(extensions, fmt.Sprintf(`apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: without}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: `+
		name+`}}}}}
    patch: {operation: REMOVE}
  - applyTo: NETWORK_FILTER
    match: {listener: {filterChain: {filter: {name: `+name+`}}}}
    patch: {operation: REMOVE}
  - applyTo: HTTP_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: `+
		name+`}}}}}
    patch: {operation: MERGE, value: {name: merged}}
`, "one", "two", "three"))
	r.answers("200 ")
	forwards(true)
}
