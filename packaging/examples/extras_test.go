package examples

import (
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/agent/wasm/wasmtest"
)

// extras are in the order of their tests.
var extras = []extra{
	{name: "two-hosts", url: "https://blog.example.com/",
		explains: "server name blog.example.com", acts: func(e *edge) bool {
			return e.ask(request{url: "https://shop.example.com/"}).from() == "shop" &&
				e.ask(request{url: "https://blog.example.com/"}).from() == "blog"
		}, shows: showTwoHosts},
	{name: "compression", explains: "filter envoy.filters.http.compressor.brotli",
		acts: func(e *edge) bool {
			got := e.ask(headers("Accept-Encoding", "gzip, br"))
			return got.header.Get("Content-Encoding") == "br"
		}, shows: showCompression},
	{name: "rate-limit", explains: "filter envoy.filters.http.local_ratelimit",
		acts: func(e *edge) bool {
			var wg sync.WaitGroup
			var limited atomic.Bool
			// all at once, so that the bucket of the rate limit is not refilled in between
			for range 40 {
				wg.Go(func() {
					if e.ask(request{}).status == http.StatusTooManyRequests {
						limited.Store(true)
					}
				})
			}
			wg.Wait()
			return limited.Load()
		}, shows: func(t *testing.T, e *edge) {
			if got := e.ask(request{from: stranger}); got.status != 200 {
				t.Errorf("another client: %+v", got)
			}
		}},
	{name: "request-size", explains: "filter envoy.filters.http.buffer",
		acts: func(e *edge) bool { return e.post(10_000_001) == http.StatusRequestEntityTooLarge },
		shows: func(t *testing.T, e *edge) {
			if got := e.post(10_000_000); got != 200 {
				t.Errorf("10 MB: %d", got)
			}
		}},
	{name: "basic-auth", explains: "filter envoy.filters.http.basic_auth",
		acts:  func(e *edge) bool { return e.ask(request{}).status == 401 },
		shows: showBasicAuth},
	{name: "jwt", from: stranger, explains: "=> answered with status 403: denied by ",
		acts:  func(e *edge) bool { return e.ask(request{}).status == 403 },
		shows: showJWT},
	{name: "allow-addresses", from: stranger, explains: "=> answered with status 403: denied by ",
		acts: func(e *edge) bool {
			return e.ask(request{}).status == 200 && e.ask(request{from: stranger}).status == 403
		}},
	{name: "external-authorizer", alone: true,
		explains: "not known: what the external authorizer at authorizer.internal answers",
		acts: func(e *edge) bool {
			got := e.ask(request{})
			return got.status == 401 && got.header.Get("Www-Authenticate") == "Cookie"
		}, shows: showExternalAuthorizer},
	{name: "error-pages", explains: "changes answers of its own, by 1 rule",
		acts: func(e *edge) bool {
			got := e.ask(request{url: www})
			return got.status == 503 && strings.Contains(got.body, "<p>503, request ") &&
				got.header.Get("Content-Type") == "text/html; charset=utf-8"
		}},
	{name: "health-checks", explains: "checks endpoints every 2s at /healthz",
		acts: func(e *edge) bool {
			e.sick.Store(true)
			return e.servers(20) == "api0"
		}, shows: showHealthChecks},
	{name: "sticky-sessions", explains: "keeps to an endpoint by hash of cookie server",
		acts: func(e *edge) bool {
			cookie, _, _ := strings.Cut(e.ask(request{}).header.Get("Set-Cookie"), ";")
			if cookie == "" {
				return false
			}
			first := e.ask(headers("Cookie", cookie)).from()
			for range 20 {
				if e.ask(headers("Cookie", cookie)).from() != first {
					return false
				}
			}
			return true
		}, shows: func(t *testing.T, e *edge) {
			if got := e.servers(40); got != "api0 api1" {
				t.Errorf("clients without a cookie reach %s", got)
			}
		}},
	{name: "plain-headers", explains: "filter envoy.filters.http.router",
		acts: func(e *edge) bool {
			got := e.ask(request{from: stranger})
			if got.from() == "" {
				e.t.Fatalf("no server answers: %+v", got)
			}
			for name, values := range got.header {
				if strings.Contains(name, "X-Envoy") && values[0] != "" || name == "Server" {
					return false
				}
			}
			return true
		},
		shows: func(t *testing.T, e *edge) {
			got := e.ask(request{from: stranger})
			if got.header.Get("Saw-X-Request-Id") == "" ||
				got.header.Get("Saw-X-Forwarded-For") != stranger {
				t.Errorf("what servers need: %v", got.header)
			}
		}},
	{name: "trusted-proxies", explains: "(trusted proxies: 1)", acts: func(e *edge) bool {
		got := e.ask(headers("X-Forwarded-For", "203.0.113.9, 198.51.100.7"))
		return got.header.Get("Saw-X-Envoy-External-Address") == "198.51.100.7"
	}},
	{name: "telemetry", alone: true, explains: "sends spans to opentelemetry, for 10 %",
		acts: func(e *edge) bool {
			before := e.spans.Load()
			for range 100 {
				e.ask(request{})
			}
			return e.spans.Load() > before
		}, shows: showTelemetryLog},
	{name: "wasm", explains: "WasmPlugin default/hello", acts: func(e *edge) bool {
		return e.ask(request{}).header.Get("X-Wasm") == "hello"
	}},
	{name: "proxy-protocol", explains: "listener filter envoy.filters.listener.proxy_protocol",
		acts: func(e *edge) bool { return e.ask(request{}).status == 0 },
		shows: func(t *testing.T, e *edge) {
			v2 := "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + // PROXY, TCP over IPv4, 12 bytes
				"\xc6\x33\x64\x07\x7f\x00\x00\x01\x15\xb3\x01\xbb"
			for _, header := range []string{
				"PROXY TCP4 198.51.100.7 127.0.0.1 5555 443\r\n", v2} {
				got := e.ask(request{preface: header})
				if got.header.Get("Saw-X-Forwarded-For") != "198.51.100.7" {
					t.Errorf("with %q: %+v", header, got)
				}
			}
		}},
}

// post sends a request with a body of n bytes and returns the status.
func (e *edge) post(n int) int {
	e.t.Helper()
	return e.ask(request{method: "POST", body: strings.Repeat("x", n)}).status
}

// servers returns the names of the servers that answer n requests.
func (e *edge) servers(n int) string {
	e.t.Helper()
	seen := map[string]bool{}
	for range n {
		seen[e.ask(request{}).from()] = true
	}
	var names []string
	for _, name := range []string{"", "api0", "api1"} {
		if seen[name] {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func showTwoHosts(t *testing.T, e *edge) {
	plain := e.get(request{url: "http://blog.example.com/x", to: "127.0.0.1:80"})
	if plain.status != 301 || plain.header.Get("Location") != "https://blog.example.com/x" {
		t.Errorf("http: %+v", plain)
	}
	if got := e.ask(request{url: "https://other.example.com/"}); got.status != 0 {
		t.Errorf("another name: %+v", got)
	}
	out, err := e.outrider("certs")
	for _, name := range []string{"shop", "blog", "www"} {
		if err != nil || !strings.Contains(out, "credential "+name) {
			t.Errorf("outrider certs has no %s: %v\n%s", name, err, out)
		}
	}
}

func showCompression(t *testing.T, e *edge) {
	plain := e.ask(request{})
	if plain.header.Get("Content-Encoding") != "" || len(plain.body) < 500 {
		t.Errorf("without Accept-Encoding: %+v", plain)
	}
	zipped := e.ask(headers("Accept-Encoding", "gzip"))
	if zipped.header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%+v", zipped)
	}
	reader, err := gzip.NewReader(strings.NewReader(zipped.body))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(reader); err != nil || string(text) != plain.body {
		t.Errorf("gzip: %q, %v", text, err)
	}
	curl := exec.CommandContext(t.Context(), "curl", "-sS", "-k", "--compressed", "--resolve",
		"www.example.com:443:127.0.0.1", "-H", "Accept-Encoding: br", api)
	var out []byte
	e.do(func() { out, err = curl.CombinedOutput() })
	if err != nil || string(out) != plain.body {
		t.Errorf("brotli: %v: %s", err, out)
	}
}

// writeUser writes the file of users of the example basic-auth.
func (e *edge) writeUser(name, password string) {
	e.t.Helper()
	sum := sha1.Sum([]byte(password))
	e.write("outrider/users", name+":{SHA}"+base64.StdEncoding.EncodeToString(sum[:])+"\n")
}

// writeModule writes the module of the example wasm, by the command that its comment names.
func (e *edge) writeModule() {
	e.t.Helper()
	const file = "wasm/hello.wasm"
	encoded := load("wasm").Files[2]
	module, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(encoded.Text, "\n", ""))
	if err != nil || encoded.Path != file+".base64" {
		e.t.Fatalf("%s: %v", encoded.Path, err)
	}
	if want := wasmtest.HeaderModule(wasmtest.ResponseHeaderMap, "x-wasm",
		"hello"); !bytes.Equal(module, want) {
		e.t.Errorf("%s is not what wasmtest.Tagger returns: %x", encoded.Path, want)
	}
	e.write("outrider/"+file, string(module))
}

func showBasicAuth(t *testing.T, e *edge) {
	as := func(name, password string) answer {
		return e.ask(headers("Authorization",
			"Basic "+base64.StdEncoding.EncodeToString([]byte(name+":"+password)), "X-User", "root"))
	}
	if got := as("alice", "secret"); got.status != 200 || got.header.Get("Saw-X-User") != "alice" {
		t.Errorf("alice: %+v", got)
	}
	if got := as("alice", "wrong"); got.status != 401 {
		t.Errorf("a wrong password: %+v", got)
	}
	e.writeUser("bob", "new")
	if out, err := e.outrider("reload"); err != nil {
		t.Fatalf("outrider reload: %v: %s", err, out)
	}
	if got := as("bob", "new"); got.status != 200 {
		t.Errorf("bob after a reload: %+v", got)
	}
	if got := as("alice", "secret"); got.status != 401 {
		t.Errorf("alice, who is gone: %+v", got)
	}
}

var unpadded = base64.RawURLEncoding.EncodeToString

// writeKeys replaces the key in the installed example jwt.
func (e *edge) writeKeys(key *ecdsa.PrivateKey) {
	e.t.Helper()
	point, err := key.PublicKey.Bytes()
	if err != nil {
		e.t.Fatal(err)
	}
	file := "outrider/mesh.d/jwt.yaml"
	text, err := os.ReadFile(filepath.Join(e.etc, file))
	if err != nil {
		e.t.Fatal(err)
	}
	for name, value := range map[string][]byte{"x": point[1:33], "y": point[33:]} {
		text = regexp.MustCompile(fmt.Sprintf(`%q: "[\w-]+"`, name)).ReplaceAll(text,
			fmt.Appendf(nil, "%q: %q", name, unpadded(value)))
	}
	e.write(file, string(text))
}

// authorize decides about requests as an external authorizer.
func authorize(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/check/api/" || r.Header.Get("Cookie") != "session=alice" {
		w.Header().Set("WWW-Authenticate", "Cookie")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	w.Header().Set("X-User", "alice")
}

func showExternalAuthorizer(t *testing.T, e *edge) {
	got := e.ask(headers("Cookie", "session=alice", "X-User", "root"))
	if got.status != 200 || got.header.Get("Saw-X-User") != "alice" {
		t.Errorf("alice: %+v", got)
	}
	if got := e.ask(request{url: www}); got.status != 503 {
		t.Errorf("another path, whose server is down: %+v", got)
	}
}

// token issues a token.
func token(t *testing.T, key *ecdsa.PrivateKey, audience string, until time.Duration) request {
	t.Helper()
	claims, err := json.Marshal(map[string]any{"iss": "https://login.example.com/",
		"sub": "alice", "aud": audience, "exp": time.Now().Add(until).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	text := unpadded([]byte(`{"alg":"ES256","kid":"1"}`)) + "." + unpadded(claims)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return headers("Authorization", "Bearer "+text+"."+unpadded(signature))
}

func showJWT(t *testing.T, e *edge) {
	e.writeKeys(e.ca.key)
	e.eventually("the key of the test is in force", func() bool {
		return e.ask(token(t, e.ca.key, "www.example.com", time.Hour)).status == 200
	})
	good := e.ask(token(t, e.ca.key, "www.example.com", time.Hour))
	payload, err := base64.RawURLEncoding.DecodeString(good.header.Get("Saw-X-Jwt-Payload"))
	if good.status != 200 || err != nil || !strings.Contains(string(payload), `"sub":"alice"`) {
		t.Errorf("a token: %+v, %v", good, err)
	}
	for who, bad := range map[string]request{
		"for another audience": token(t, e.ca.key, "other.example.com", time.Hour),
		"expired":              token(t, e.ca.key, "www.example.com", -time.Hour),
		"forged":               token(t, newAuthority(t).key, "www.example.com", time.Hour),
	} {
		if got := e.ask(bad); got.status != 401 && got.status != 403 {
			t.Errorf("a token %s: %d", who, got.status)
		}
	}
	if got := e.ask(request{url: "https://www.example.com/health"}); got.status != 503 {
		t.Errorf("/health, whose server is down: %d", got.status)
	}
}

func showHealthChecks(t *testing.T, e *edge) {
	out, err := e.outrider("proxy", "endpoints", "outbound|80||api.internal")
	if err != nil || !strings.Contains(out, "failed health check") {
		t.Errorf("outrider proxy endpoints: %v\n%s", err, out)
	}
	e.sick.Store(false)
	e.eventually("the server that is well again gets requests", func() bool {
		return e.servers(20) == "api0 api1"
	})
}
