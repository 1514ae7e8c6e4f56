package wasm_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/wasm"
	"outrider.org/outrider/agent/wasm/wasmtest"
	"outrider.org/outrider/scripts/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a running Fetcher with a server of modules.
type rig struct {
	*wasm.Fetcher
	t        *testing.T
	url      string
	requests atomic.Int32
	answer   atomic.Pointer[http.HandlerFunc]
	stop     func()
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.requests.Add(1)
		(*r.answer.Load())(w, q)
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	r.answers(wasmtest.EmptyModule)
	return r
}

func (r *rig) handle(h http.HandlerFunc) { r.answer.Store(&h) }

func (r *rig) answers(text string) {
	r.handle(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
}

// start runs a Fetcher that stores modules in a file.
func (r *rig) start(file string) {
	r.Fetcher = wasm.NewFetcher(wasm.FetcherOptions{File: file,
		AllowsLocalAddress: func(string) bool { return true }})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) }) // always nil
	r.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	r.t.Cleanup(r.stop)
}

// gets waits until a module has been fetched, and returns it.
func (r *rig) gets(from wasm.Source) []byte {
	r.t.Helper()
	var code []byte
	var err error
	parts.EventuallyWithObservation(r.t, time.Minute, "the module of "+from.URL, func() (bool, string) {
		code, err = r.Module(from)
		return code != nil, fmt.Sprint(err)
	})
	return code
}

// fails waits for an error that contains a text.
func (r *rig) fails(from wasm.Source, text string) {
	r.t.Helper()
	parts.EventuallyWithObservation(r.t, time.Minute, "the error "+text, func() (bool, string) {
		code, err := r.Module(from)
		return code == nil && err != nil && strings.Contains(err.Error(), text), fmt.Sprint(err)
	})
}

func TestFetcher_FetchesAgainUntilThere(t *testing.T) {
	r := newRig(t)
	r.start("")
	good := strings.Repeat("0", 64)
	web, wrong := wasm.Source{URL: r.url + "/m?sig=secret"}, wasm.Source{URL: r.url, SHA256: good}
	r.handle(http.NotFound)
	r.SetSources([]wasm.Source{web, wrong})
	r.fails(web, "404 Not Found")
	if _, err := r.Module(web); strings.Contains(err.Error(), "secret") {
		t.Errorf("a credential is in %v", err)
	}
	r.answers(wasmtest.EmptyModule)
	if got := r.gets(web); string(got) != wasmtest.EmptyModule {
		t.Errorf("%q", got)
	}
	r.fails(wrong, "does not have the SHA-256 000")
	r.answers("text")
	other := wasm.Source{URL: r.url, ConfigVersion: "2"}
	r.SetSources([]wasm.Source{web, other})
	r.fails(other, "is not a Wasm module")
	if code, err := r.Module(wrong); code != nil || err != nil {
		t.Errorf("a module that is not required: %q, %v", code, err)
	}
	r.handle(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(wasm.MaxBytes+1))
		_, _ = w.Write(make([]byte, wasm.MaxBytes+1))
	})
	huge := wasm.Source{URL: r.url, ConfigVersion: "3"}
	r.SetSources([]wasm.Source{huge})
	r.fails(huge, "more than 64 MB")
	r.handle(func(w http.ResponseWriter, _ *http.Request) { // HTTP/1.0: the length is unknown
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\n\r\n%s", wasmtest.EmptyModule[:20])
		_ = conn.Close()
	})
	half := wasm.Source{URL: r.url, ConfigVersion: "4"}
	r.SetSources([]wasm.Source{half})
	r.fails(half, "is truncated")
	gone := wasm.Source{URL: "http://127.0.0.1:1/m"}
	r.SetSources([]wasm.Source{gone})
	r.fails(gone, "connection refused")
}

// TestFetcher_SlowServerDelaysNoOther: a module whose server does not answer, and a file that is a
// FIFO, delay neither other modules nor the Fetcher's end.
func TestFetcher_SlowServerDelaysNoOther(t *testing.T) {
	r := newRig(t)
	r.start("")
	release := make(chan struct{})
	defer close(release)
	r.handle(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/slow" {
			select {
			case <-release:
			case <-q.Context().Done():
			}
			return
		}
		_, _ = w.Write([]byte(wasmtest.EmptyModule))
	})
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	slow, quick := wasm.Source{URL: r.url + "/slow"}, wasm.Source{URL: r.url + "/quick"}
	pipe := wasm.Source{URL: "file://" + fifo}
	r.SetSources([]wasm.Source{slow, pipe, quick})
	r.gets(quick)
	r.fails(pipe, "no regular file")
	if code, err := r.Module(slow); code != nil || err != nil {
		t.Errorf("%q, %v", code, err)
	}
	r.stop()
}

// TestFetcher_RestartNeedsNoServer: the next Fetcher has the modules that are still required, and
// reads those of files again.
func TestFetcher_RestartNeedsNoServer(t *testing.T) {
	r := newRig(t)
	state := filepath.Join(t.TempDir(), "modules")
	path := filepath.Join(t.TempDir(), "m.wasm")
	first, second := wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "a", "1"),
		wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "a", "2")
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(state)
	web, file := wasm.Source{URL: r.url}, wasm.Source{URL: "file://" + path}
	r.SetSources([]wasm.Source{web, file})
	r.gets(web)
	r.gets(file)
	parts.Eventually(t, time.Minute, "the modules are stored", func() bool {
		stored, err := os.ReadFile(state)
		return err == nil && bytes.Contains(stored, first) &&
			bytes.Contains(stored, []byte(wasmtest.EmptyModule))
	})
	r.stop()
	r.handle(http.NotFound)
	before := r.requests.Load()
	if err := os.WriteFile(path, second, 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(state)
	if code, err := r.Module(web); string(code) != wasmtest.EmptyModule {
		t.Errorf("at the start: %q, %v", code, err)
	}
	r.SetSources([]wasm.Source{web, file})
	parts.Eventually(t, time.Minute, "the file is read again", func() bool {
		return bytes.Equal(r.gets(file), second)
	})
	if n := r.requests.Load() - before; n > 0 {
		t.Errorf("%d requests", n)
	}
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	r.RereadFiles()
	parts.Eventually(t, time.Minute, "a reload reads the file again", func() bool {
		return bytes.Equal(r.gets(file), first)
	})
	if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.RereadFiles()
	parts.Eventually(t, time.Minute, "an invalid file is reported, and its module remains",
		func() bool {
			code, err := r.Module(file)
			return bytes.Equal(code, first) && err != nil
		})
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	r.RereadFiles()
	parts.Eventually(t, time.Minute, "no error remains", func() bool {
		_, err := r.Module(file)
		return err == nil
	})
	r.stop()
	if err := os.WriteFile(state, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(state)
	r.SetSources([]wasm.Source{file})
	r.gets(file)
}

// TestFetcher_ChangedFileCounts: a module file that is rewritten or replaced is read again without
// a call of RereadFiles. While the file is incomplete, invalid or missing, its previous module is
// used.
func TestFetcher_ChangedFileCounts(t *testing.T) {
	r := newRig(t)
	folder := t.TempDir()
	path := filepath.Join(folder, "m.wasm")
	file := wasm.Source{URL: "file://" + path}
	version := func(n string) []byte {
		return wasmtest.HeaderModule(wasmtest.RequestHeaderMap, "a",
			n)
	}
	put := func(path string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	has := func(what string, want []byte, problem string) {
		t.Helper()
		parts.EventuallyWithObservation(t, 60*time.Second, what, func() (bool, string) {
			code, err := r.Module(file)
			return bytes.Equal(code, want) && (err != nil) == (problem != "") &&
				(err == nil || strings.Contains(err.Error(), problem)), fmt.Sprintf("%q, %v", code, err)
		})
	}
	r.start("")
	r.SetSources([]wasm.Source{file})
	has("the file is missing", nil, "no such file")
	put(path, version("1"))
	has("a new file", version("1"), "")
	put(path, version("2")[:60])
	has("half a file", version("1"), "is truncated")
	put(path, version("2"))
	has("a written file", version("2"), "")
	put(path+".new", version("3"))
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	has("a replaced file", version("3"), "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	has("a removed file", version("3"), "no such file")
	r.SetSources(nil)
	put(path, version("4"))
	r.SetSources([]wasm.Source{file})
	has("a file that is required again", version("4"), "")
}

func TestFetcher_PullSecretFromItsFile(t *testing.T) {
	guard := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if u, p, _ := r.BasicAuth(); u != "user" || p != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	images := wasmtest.NewRegistry(t, guard)
	images.Push("p/m:v1", wasmtest.OCIManifest, wasmtest.Layer{MediaType: wasmtest.ModuleType,
		Content: wasmtest.EmptyModule})
	r := newRig(t)
	r.start("")
	secret := filepath.Join(t.TempDir(), "pull", ".dockerconfigjson")
	from := wasm.Source{URL: "oci://" + images.Host + "/p/m:v1", SecretFile: secret}
	r.SetSources([]wasm.Source{from})
	r.fails(from, "image pull secret: open "+secret)
	if err := os.Mkdir(filepath.Dir(secret), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, fmt.Appendf(nil, `{"auths": {%q: {"auth": %q}}}`, images.Host,
		base64.StdEncoding.EncodeToString([]byte("user:secret"))), 0o600); err != nil {
		t.Fatal(err)
	}
	r.gets(from)
}

func TestFetcher_NumberOfModulesIsBounded(t *testing.T) {
	r := newRig(t)
	r.start("")
	var all []wasm.Source
	for i := range 65 {
		all = append(all, wasm.Source{URL: fmt.Sprintf("%s/%02d", r.url, i)})
	}
	r.SetSources(all)
	r.gets(all[0])
	r.fails(all[64], "more than 64 Wasm modules")
}
