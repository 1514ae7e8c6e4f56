package examples

import (
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestHello also makes the change that the comments of the example propose.
func TestHello(t *testing.T) {
	s := newSandbox(t, "hello")
	s.backend("127.0.0.1:3000", nil, named("app"))
	s.start()
	first := request{url: "http://127.0.0.1:8080/", to: "127.0.0.1:8080"}
	if got := s.get(first); got.status != 200 || got.body != "Outrider serves.\n" {
		t.Errorf("%+v", got)
	}
	text, err := os.ReadFile(filepath.Join(s.etc, "outrider/mesh.d/hello.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, entry, _ := strings.Cut(string(text), "# ---\n")
	objects, _, _ = strings.Cut(objects, "  - directResponse:")
	s.write("outrider/mesh.d/hello.yaml", objects+
		"  - route:\n    - destination: {host: app.internal}\n---\n"+
		strings.ReplaceAll("\n"+entry, "\n# ", "\n"))
	s.eventually("the server answers", func() bool { return s.get(first).from() == "app" })
}

func TestReverseProxy(t *testing.T) {
	s := newSandbox(t, "reverse-proxy")
	ca := newAuthority(t)
	www := ca.issue("www.example.com")
	s.write("outrider/credentials/www/tls.crt", www.cert)
	s.write("outrider/credentials/www/tls.key", www.key)
	s.backend("127.0.0.1:3000", nil, named("web"))
	s.backend("127.0.0.1:4000", nil, named("api0"))
	s.backend("127.0.0.1:4001", nil, named("api1"))
	s.start()

	plain := s.get(request{url: "http://www.example.com/", to: "127.0.0.1:80"})
	if plain.status != 301 || plain.header.Get("Location") != "https://www.example.com/" {
		t.Errorf("http: %d, Location %q", plain.status, plain.header.Get("Location"))
	}
	trust := ca.trust("www.example.com")
	web := s.get(request{url: "https://www.example.com/x", to: "127.0.0.1:443", tls: trust})
	if web.status != 200 || web.from() != "web" ||
		web.header.Get("Strict-Transport-Security") != "max-age=31536000" {
		t.Errorf("/: %+v", web)
	}
	if web.header.Get("Saw-X-Forwarded-Proto") != "https" ||
		web.header.Get("Saw-Host") != "www.example.com" ||
		web.header.Get("Saw-X-Forwarded-For") != "127.0.0.1" ||
		web.header.Get("Saw-X-Request-Id") == "" {
		t.Errorf("what the server sees: %v", web.header)
	}
	seen := map[string]bool{}
	for range 50 {
		users := request{url: "https://www.example.com/api/users", to: "127.0.0.1:443", tls: trust}
		seen[s.get(users).from()] = true
	}
	if !seen["api0"] || !seen["api1"] || len(seen) != 2 {
		t.Errorf("/api/ is answered by %v", seen)
	}
	old := ca.trust("www.example.com")
	old.MaxVersion, old.MinVersion = tls.VersionTLS11, tls.VersionTLS10
	s.refuses("TLS 1.1", request{url: "https://www.example.com/", to: "127.0.0.1:443", tls: old})
	s.refuses("another name", request{
		url: "https://other.example.com/", to: "127.0.0.1:443", tls: ca.trust("other.example.com")})

	// A renewed certificate is used once both files are replaced.
	renewed := ca.issue("www.example.com")
	s.write("outrider/credentials/www/tls.crt", renewed.cert)
	s.write("outrider/credentials/www/tls.key", renewed.key)
	s.eventually("the renewed certificate is used", func() bool {
		conn, err := s.dial("127.0.0.1:443")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		client := tls.Client(conn, trust)
		return client.Handshake() == nil &&
			client.ConnectionState().PeerCertificates[0].Equal(renewed.tls.Leaf)
	})
}

func TestCanary(t *testing.T) {
	s := newSandbox(t, "canary")
	s.backend("127.0.0.1:3000", nil, named("stable"))
	s.backend("127.0.0.1:3001", nil, named("canary"))
	s.start()
	shop := request{url: "http://127.0.0.1:8080/", to: "127.0.0.1:8080"}
	const all = 1000
	share := func() int {
		n := 0
		for range all {
			if s.get(shop).from() == "canary" {
				n++
			}
		}
		return n
	}
	// The binomial distribution has mean 100 and standard deviation 9.5; allow six of these to
	// either side.
	if n := share(); n < 43 || n > 157 {
		t.Errorf("%d of %d requests reach the canary, about 100 should", n, all)
	}
	chosen := shop
	chosen.header = http.Header{"X-Canary": {"always"}}
	for range 20 {
		if got := s.get(chosen); got.from() != "canary" {
			t.Fatalf("with the header: %+v", got)
		}
	}
	// Change the weights in the file.
	text, err := os.ReadFile(filepath.Join(s.etc, "outrider/mesh.d/canary.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	weights := strings.NewReplacer("weight: 90", "weight: 0", "weight: 10\n", "weight: 100\n")
	s.write("outrider/mesh.d/canary.yaml", weights.Replace(string(text)))
	s.eventually("all requests reach the canary", func() bool {
		for range 20 {
			if s.get(shop).from() != "canary" {
				return false
			}
		}
		return true
	})
}

func TestRetries(t *testing.T) {
	s := newSandbox(t, "retries")
	var badAsked, goodAsked atomic.Int32
	s.backend("127.0.0.1:5000", nil, func(w http.ResponseWriter, r *http.Request) {
		badAsked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	s.backend("127.0.0.1:5001", nil, func(w http.ResponseWriter, r *http.Request) {
		goodAsked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		named("good")(w, r)
	})
	s.start()

	const orders = "http://127.0.0.1:8081/"
	// Requests with side effects are not retried: the client gets the bad server's 503.
	refused := 0
	for range 4 {
		if s.get(request{method: "POST", url: orders, to: "127.0.0.1:8081",
			body: "x"}).status == 503 {
			refused++
		}
	}
	if bad := int(badAsked.Load()); bad != refused || bad+int(goodAsked.Load()) != 4 {
		t.Errorf("4 POSTs: %d at one server and %d at the other, %d answered with 503",
			bad, goodAsked.Load(), refused)
	}
	// Other clients see no failure. The bad server receives requests until it is ejected.
	for i := range 100 {
		got := s.get(request{url: orders, to: "127.0.0.1:8081"})
		if got.status != 200 || got.from() != "good" {
			t.Fatalf("request %d: %+v", i, got)
		}
	}
	before := badAsked.Load()
	if before < 5 || before > 15 {
		t.Errorf("the bad server was asked %d times; it should be taken out after 5", before)
	}
	// Attempts end after 500 ms, and the client receives a response within two seconds.
	goodAsked.Store(0)
	began := time.Now()
	got := s.get(request{url: orders + "slow", to: "127.0.0.1:8081"})
	took := time.Since(began)
	if got.status != 504 || took < 1400*time.Millisecond || took > 10*time.Second {
		t.Errorf("a slow server: %d after %s", got.status, took)
	}
	if n := goodAsked.Load(); n != 3 {
		t.Errorf("a slow server was asked %d times, want 3", n)
	}
	if now := badAsked.Load(); now != before {
		t.Errorf("the bad server was asked %d times more", now-before)
	}
}
