package discovery_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"outrider.org/outrider/agent/wasm/wasmtest"
)

// TestExtensions_ServersOfModules: while the server of a module fails or sends too many bytes,
// requests pass or are denied as failStrategy says. The reported problem names file, line and URL
// without credentials. The module takes effect once the server has recovered.
func TestExtensions_ServersOfModules(t *testing.T) {
	const user, password = "user", "secret"
	r := newExtensionRig(t, t.TempDir())
	tagger := wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "x-order", "a")
	r.module("a", tagger)
	failing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	gone := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 1<<20)
		for err := error(nil); err == nil; {
			_, err = w.Write(chunk)
		}
	})
	images := wasmtest.NewRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if h := r.handle.Load(); h != nil && strings.Contains(q.URL.Path, "/blobs/") {
				(*h)(w, q)
				return
			}
			next.ServeHTTP(w, q)
		})
	})
	images.Push("p/a:v1", wasmtest.OCIManifest,
		wasmtest.Layer{MediaType: wasmtest.ModuleType, Content: string(tagger)})
	host := strings.TrimPrefix(r.modules.URL, "http://")
	web := "http://" + user + ":" + password + "@" + host + "/a?sig=" + password
	image := "oci://" + images.Host + "/p/a:v1"
	e := startEnvoy(t, "router", r.server)
	e.listens(t)
	r.answers("200 ")
	for i, c := range []struct {
		url     string
		handler http.HandlerFunc
		problem string
		spec    string
		open    bool
	}{
		{web, gone, "http://" + host + "/a", "failStrategy: FAIL_OPEN", true},
		{web, gone, "http://" + host + "/a", "failStrategy: FAIL_CLOSE", false},
		{web, failing, "http://" + host + "/a", "failStrategy: FAIL_OPEN, phase: AUTHN", false},
		{web, failing, "503", "failStrategy: FAIL_CLOSE, phase: AUTHZ", false},
		{web, endless, "more than 64 MB", "failStrategy: FAIL_OPEN, phase: STATS", true},
		{web, endless, "more than 64 MB", "failStrategy: FAIL_OPEN, phase: AUTHZ", false},
		{image, gone, images.Host, "failStrategy: FAIL_OPEN", true},
		{image, failing, "503", "failStrategy: FAIL_CLOSE", false},
		{image, endless, "trailing data", "failStrategy: FAIL_OPEN, phase: AUTHZ", false},
		{image, endless, "trailing data", "failStrategy: FAIL_OPEN, phase: STATS", true},
	} {
		// each case uses a new name, because Envoy retains the last configuration of a name
		name := fmt.Sprintf("case%d", i)
		r.handle.Store(&c.handler)
		r.apply(plugin(name, fmt.Sprintf("url: %q, %s", c.url, c.spec)))
		r.reports(fmt.Sprintf("%s:%d: WasmPlugin shop/%s: spec.url: its module cannot be fetched: ",
			r.file, strings.Count(r.mesh, "\n")+1, name))
		r.reports(c.problem)
		for _, p := range r.server.Problems() {
			if strings.Contains(p.String(), password) {
				t.Errorf("%s: a credential in %s", name, p)
			}
		}
		want := "403 RBAC: access denied"
		if c.open {
			want = "200 "
		}
		r.answers(want)
		r.handle.Store(nil)
		r.answers("200 a")
		r.apply()
		r.reports("")
		r.answers("200 ")
	}
}

// TestExtensions_ChangedModuleFile: a changed module file takes effect without a reload. A
// truncated file, or one that Envoy refuses, changes nothing.
func TestExtensions_ChangedModuleFile(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	version := func(n string) []byte {
		return wasmtest.HeaderModule(wasmtest.RequestHeaderMap,
			"x-order", n)
	}
	path := r.module("m", version("1"))
	startEnvoy(t, "router", r.server).listens(t)
	r.apply(plugin("one", "url: file://"+path))
	r.answers("200 1")
	r.module("m", version("2"))
	r.answers("200 2")
	if err := os.Rename(r.module("new", version("3")), path); err != nil {
		t.Fatal(err)
	}
	r.answers("200 3")
	r.module("m", version("4")[:80])
	r.reports("WasmPlugin shop/one: spec.url: its module cannot be read again: file://" + path +
		" is truncated; the former one remains in force")
	r.answers("200 3")
	r.module("m", []byte("\x00asm\x01\x00\x00\x00garbage"))
	r.reports("WasmPlugin shop/one: Envoy refused")
	r.answers("200 3")
	r.module("m", version("4"))
	r.answers("200 4")
	r.reports("")
}

// TestExtensions_GuardThatFailsOpen: in the phase AUTHZ, FAIL_OPEN lets requests pass while the
// code fails, and a problem reports that they pass unchecked.
func TestExtensions_GuardThatFailsOpen(t *testing.T) {
	r := newExtensionRig(t, t.TempDir())
	url := "phase: AUTHZ, url: file://" + r.module("fails", wasmtest.TrappingModule())
	startEnvoy(t, "router", r.server).listens(t)
	r.apply(plugin("closed", url))
	r.answers("503 ")
	r.apply(plugin("open", url+", failStrategy: FAIL_OPEN"))
	r.reports("WasmPlugin shop/open: spec.failStrategy: what the extension is for passes unchecked")
	r.answers("200 ")
}
