package relay

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"outrider.org/outrider/agent/condition"
	xdsresource "outrider.org/outrider/agent/resource"
	"outrider.org/outrider/agent/wasm"
	"outrider.org/outrider/agent/wasm/wasmtest"
	"outrider.org/outrider/scripts/parts"
)

// TestIstiod_WasmModules runs an extension of a real istiod in a real Envoy. An extension whose
// module cannot be fetched is refused. If the agent restarts while the modules' server is
// unreachable, Envoy runs the cached extension; if istiod then sends the same extension, the module
// is not requested again.
func TestIstiod_WasmModules(t *testing.T) {
	var fetched atomic.Int32
	var away atomic.Bool
	modules := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fetched.Add(1); r.URL.Path != "/good" || away.Load() {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(wasmtest.EmptyModule))
	}))
	defer modules.Close()
	stored := wasmtest.NewRegistry(t, nil)
	pushed := stored.Push("p/noop:v1", wasmtest.OCIManifest,
		wasmtest.Layer{MediaType: wasmtest.ModuleType, Content: wasmtest.EmptyModule})
	images := "oci://" + stored.Host + "/p/"
	modes(t, func(t *testing.T, delta bool) {
		i, port := startIstiod(t), parts.FreePort(t)
		i.service("a", port, startBackend(t, "first"))
		plugin := func(from, sum string) {
			t.Helper()
			text := fmt.Sprintf(`apiVersion: extensions.istio.io/v1alpha1
kind: TrafficExtension
metadata: {name: noop, namespace: shop}
spec: {wasm: {url: %q, sha256: %q}}
`, from, sum)
			if err := os.WriteFile(filepath.Join(i.folder, "plugin.yaml"), []byte(text),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte(wasmtest.EmptyModule)))
		plugin(modules.URL+"/good", sum)
		cache := filepath.Join(t.TempDir(), "cache")
		r := startRelay(t, serverAt(i.address), cache)
		fetched.Store(0)
		away.Store(false)
		e := startEnvoy(t, r.socket, delta)
		answers(t, 20*time.Second, port, "a.test", "first answers")
		parts.Eventually(t, time.Minute, "the module runs", func() bool {
			return e.Stat("wasm.envoy.wasm.runtime.v8.active") > 0
		})
		for from, want := range map[string]string{modules.URL + "/none": "404 Not Found",
			modules.URL + "/good": "not have the SHA-256 00", images + "none:v1": "none:v1: not found"} {
			plugin(from, strings.Repeat("0", 64))
			parts.Eventually(t, time.Minute, want+" is reported", func() bool {
				return strings.Contains(r.condition(conditionRefusals), want)
			})
		}
		if got := ask(port, "a.test"); !strings.Contains(got, "first answers") {
			t.Errorf("with the module before: %s", got)
		}
		before := fetched.Load()
		plugin(modules.URL+"/good", sum)
		parts.Eventually(t, time.Minute, "the good module is accepted again",
			func() bool { return r.condition(conditionRefusals) == "" })
		if again := fetched.Load() - before; again > 1 {
			t.Errorf("the module was fetched %d times", again)
		}
		plugin(images+"none:v1", "")
		parts.Eventually(t, time.Minute, "a missing image is reported",
			func() bool { return r.condition(conditionRefusals) != "" })
		plugin(images+"noop:v1", pushed.Digest.Encoded())
		parts.Eventually(t, time.Minute, "the image is accepted",
			func() bool { return r.condition(conditionRefusals) == "" })
		answers(t, 20*time.Second, port, "a.test", "first answers")

		plugin(modules.URL+"/none", "")
		parts.Eventually(t, time.Minute, "a missing module is reported",
			func() bool { return r.condition(conditionRefusals) != "" })
		plugin(modules.URL+"/good", "")
		parts.Eventually(t, time.Minute, "the module is accepted",
			func() bool { return r.condition(conditionRefusals) == "" })
		away.Store(true)
		before = fetched.Load()
		for _, changed := range []bool{false, true} {
			if changed {
				plugin(modules.URL+"/good", sum)
				parts.Eventually(t, time.Minute, "the change is refused",
					func() bool { return r.condition(conditionRefusals) != "" })
			}
			e.Kill()
			r.stop()
			r = startRelay(t, serverAt(i.address), cache)
			e = startEnvoy(t, r.socket, delta)
			answers(t, 20*time.Second, port, "a.test", "first answers")
			if e.Stat("wasm.envoy.wasm.runtime.v8.active") == 0 {
				t.Error("without its server, the module does not run")
			}
			if s := r.Status(); s.State != Connected {
				t.Errorf("%+v", s)
			}
			if refused := r.condition(conditionRefusals) != ""; refused != changed ||
				!changed && fetched.Load() > before {
				t.Errorf("extension has changed: %t, refused: %t, %d requests", changed, refused,
					fetched.Load()-before)
			}
		}
	})
}

// TestModules_NewExtensionDeniesWithoutItsModule checks that requests are denied while the module
// of a new extension cannot be fetched, unless the extension fails open. The module takes effect
// once its server has recovered, without a change upstream. If Envoy has an earlier version of the
// extension, that version stays in use.
func TestModules_NewExtensionDeniesWithoutItsModule(t *testing.T) {
	var away atomic.Bool
	modules := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() && r.URL.Path == "/away" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(wasmtest.EmptyModule))
	}))
	defer modules.Close()
	test := func(t *testing.T, delta bool, i *istiod) {
		port := parts.FreePort(t)
		i.service("a", port, startBackend(t, "first"))
		r := startRelayWith(t, Options{Upstream: serverAt(i.address)})
		e := startEnvoy(t, r.socket, delta)
		answers(t, time.Minute, port, "a.test", "first answers")
		plugin := func(name, path, more string) {
			t.Helper()
			text := fmt.Sprintf(`apiVersion: extensions.istio.io/v1alpha1
kind: TrafficExtension
metadata: {name: %s, namespace: shop}
spec: {wasm: {url: %q%s}}
`, name, modules.URL+path, more)
			if err := os.WriteFile(filepath.Join(i.folder, name+".yaml"), []byte(text),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		reported := func(want bool) {
			t.Helper()
			parts.Eventually(t, time.Minute, fmt.Sprintf("a refusal is reported: %t", want), func() bool {
				return (r.condition(conditionRefusals) != "") == want
			})
		}
		// Count log lines: outrider-discoveryd sends the earlier version again, which ends the
		// condition.
		refused := func(change func()) {
			t.Helper()
			count := func() int { return strings.Count(r.log.String(), "refused (NACK)") }
			before := count()
			change()
			parts.Eventually(t, time.Minute, "a refusal", func() bool { return count() > before })
		}
		away.Store(true)
		refused(func() { plugin("open", "/away", ", failStrategy: FAIL_OPEN") })
		answers(t, time.Minute, port, "a.test", "first answers")
		i.remove("open")
		plugin("good", "/good", "")
		plugin("guard", "/away", "")
		answers(t, time.Minute, port, "a.test", "403 RBAC: access denied")
		reported(true)
		parts.Eventually(t, time.Minute, "no listener waits for an extension", func() bool {
			return e.Stat("listener_manager.total_listeners_warming") == 0
		})
		away.Store(false)
		answers(t, time.Minute, port, "a.test", "first answers")
		reported(false)
		away.Store(true)
		refused(func() { plugin("guard", "/away", ", pluginName: changed") })
		answers(t, time.Minute, port, "a.test", "first answers")
	}
	t.Run("istiod", func(t *testing.T) {
		modes(t, func(t *testing.T, delta bool) { test(t, delta, startIstiod(t)) })
	})
	t.Run("discoveryd", func(t *testing.T) {
		modes(t, func(t *testing.T, delta bool) {
			i := &istiod{t: t, folder: t.TempDir(), address: fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))}
			startDiscovery(t, i.folder, i.address)
			test(t, delta, i)
		})
	})
}

// waitingForModule returns the number of goroutines that wait in modules.module.
func waitingForModule() (waiting int) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		first, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(first, "[select") && strings.Contains(stack, "(*modules).module(") {
			waiting++
		}
	}
	return waiting
}

// TestModules_AreBounded checks that concurrent responses share one request for a module, that its
// time-out is limited, and that the memory for known modules is limited.
func TestModules_AreBounded(t *testing.T) {
	var fetched atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetched.Add(1)
		if !parts.Poll(20*time.Second, func() bool { return waitingForModule() == 5 }) {
			t.Error("five do not wait for the module")
		}
		_, _ = w.Write([]byte(wasmtest.EmptyModule))
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var output parts.SyncBuffer
	m := &modules{log: slog.New(slog.NewTextHandler(&output, nil)), client: localClient,
		known: map[[sha256.Size]byte][]byte{}}
	vm := remoteVM(server.URL, "", "")
	vm.Code.GetRemote().HttpUri.Timeout = durationpb.New(time.Hour)
	var all errgroup.Group
	for range 5 {
		all.Go(func() error { _, err := m.module(t.Context(), vm); return err })
	}
	if err := all.Wait(); err != nil || fetched.Load() != 1 {
		t.Errorf("%d requests, %v", fetched.Load(), err)
	}
	if text := output.String(); !strings.Contains(text, "without a sha256") {
		t.Errorf("log: %s", text)
	}
	large := make([]byte, wasm.MaxBytes)
	for i := range byte(3) {
		m.add([sha256.Size]byte{i}, large)
	}
	if len(m.known) != 1 || m.bytes != wasm.MaxBytes {
		t.Errorf("%d modules with %d bytes are held", len(m.known), m.bytes)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestModules_SourceOfUpstreamIsIgnored checks a field of cached extensions: the checksum of what
// the upstream server sent, before the module was put into it. The field is read only from the
// cache file. Otherwise an upstream server could set it.
func TestModules_SourceOfUpstreamIsIgnored(t *testing.T) {
	body := []byte("of another upstream server")
	sum := sha256.Sum256(body)
	sent := &response{typeURL: xdsresource.ExtensionType, version: "1", stored: true, resources: []resource{
		{name: "x", version: "1", body: []byte("other"), source: sum[:]}}}
	for stored, want := range map[bool]string{false: string(body), true: "other"} {
		received, err := parseResponse(sent.encode(true), true, stored)
		if err != nil {
			t.Fatal(err)
		}
		cache := OpenCache(filepath.Join(t.TempDir(), "cache"), condition.NewRegistry())
		cache.put("node", xdsresource.ExtensionType, "1", map[string]resource{"x": received.resources[0]})
		m := &modules{cache: cache, known: map[[sha256.Size]byte][]byte{}}
		if got, err := m.resource(t.Context(), body); err != nil || string(got) != want {
			t.Errorf("stored %t: extension %q, %v; want %q", stored, got, err, want)
		}
	}
}

// TestModules_FailuresAreRetried checks that a failed fetch is repeated at growing intervals.
func TestModules_FailuresAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{Conditions: condition.NewRegistry()}).modules
		var moments []time.Duration
		started := time.Now()
		_, err := m.inAttempts(t.Context(), moduleTime, func(context.Context) (wasm.Module, error) {
			moments = append(moments, time.Since(started).Round(firstModulePause))
			return wasm.Module{}, fmt.Errorf("failure %d", len(moments))
		})
		if err == nil || len(moments) != moduleAttempts || moments[1] != firstModulePause ||
			moments[4] < 10*firstModulePause {
			t.Errorf("%v after attempts at %v", err, moments)
		}
	})
}

func TestModules_TimeoutIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &modules{log: slog.New(slog.DiscardHandler)}
		before := http.DefaultClient.Transport
		defer func() { http.DefaultClient.Transport = before }()
		http.DefaultClient.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		started := time.Now()
		vm := remoteVM("https://hangs.invalid", "", "")
		vm.Code.GetRemote().HttpUri.Timeout = durationpb.New(time.Hour)
		_, err := m.module(t.Context(), vm)
		if took := time.Since(started); err == nil || took != moduleTime {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// localClient fetches modules from local addresses, too.
var localClient = wasm.Client{AllowsLocalAddress: func(string) bool { return true }}

// remoteVM returns the VM configuration of a Wasm filter with a remote module.
func remoteVM(from, sum, secret string) *wasmv3.VmConfig {
	return &wasmv3.VmConfig{
		EnvironmentVariables: &wasmv3.EnvironmentVariables{
			KeyValues: map[string]string{pullSecret: secret}},
		Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{
			Remote: &corev3.RemoteDataSource{Sha256: sum, HttpUri: &corev3.HttpUri{Uri: from,
				// time-out of one attempt to fetch the module
				Timeout: durationpb.New(firstModulePause / 2)}}}},
	}
}
