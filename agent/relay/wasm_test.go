package relay

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// emptyModule is a Wasm module without effect: memory, malloc and the version of the ABI.
const emptyModule = "\x00asm\x01\x00\x00\x00" +
	"\x01\x09\x02\x60\x00\x00\x60\x01\x7f\x01\x7f" + // types () and (i32) i32
	"\x03\x03\x02\x00\x01" + "\x05\x03\x01\x00\x01" + // two functions, one page
	"\x07\x2d\x03\x06memory\x02\x00\x17proxy_abi_version_0_2_1\x00\x00\x06malloc\x00\x01" +
	"\x0a\x0a\x02\x02\x00\x0b\x05\x00\x41\x80\x08\x0b"

// An extension of a real istiod runs in a real Envoy; what cannot be fetched is refused.
func TestIstiod_WasmModules(t *testing.T) {
	var fetched atomic.Int32
	modules := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fetched.Add(1); r.URL.Path != "/good" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(emptyModule))
	}))
	defer modules.Close()
	modes(t, func(t *testing.T, delta bool) {
		i, port := startIstiod(t), parts.FreePort(t)
		i.service("a", port, startBackend(t, "first"))
		plugin := func(path, sum string) {
			t.Helper()
			text := fmt.Sprintf(`apiVersion: extensions.istio.io/v1alpha1
kind: TrafficExtension
metadata: {name: noop, namespace: shop}
spec: {wasm: {url: %q, sha256: %q}}
`, modules.URL+path, sum)
			if err := os.WriteFile(filepath.Join(i.folder, "plugin.yaml"), []byte(text),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte(emptyModule)))
		plugin("/good", sum)
		r := startRelay(t, Upstream{Address: i.address}, "")
		fetched.Store(0)
		e := startEnvoy(t, r.socket, delta)
		answers(t, 20*time.Second, port, "a.test", "first answers")
		parts.Eventually(t, 10*time.Second, "the module runs", func() bool {
			active := e.stat("wasm.envoy.wasm.runtime.v8.active")
			return active != "" && !strings.HasSuffix(active, ": 0")
		})
		for path, want := range map[string]string{"/none": "404 Not Found", "/good": "instead of 00"} {
			plugin(path, strings.Repeat("0", 64))
			parts.Eventually(t, 20*time.Second, want+" is reported", func() bool {
				return strings.Contains(r.condition(conditionRefusals), want)
			})
		}
		if got := ask(port, "a.test"); !strings.Contains(got, "first answers") {
			t.Errorf("with the module before: %s", got)
		}
		before := fetched.Load()
		plugin("/good", sum)
		parts.Eventually(t, 20*time.Second, "the good module is accepted again",
			func() bool { return r.condition(conditionRefusals) == "" })
		if again := fetched.Load() - before; again > 1 {
			t.Errorf("the module was fetched %d times", again)
		}
	})
}
