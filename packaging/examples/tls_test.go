package examples

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestSNI(t *testing.T) {
	s := newSandbox(t, "sni")
	ca := newAuthority(t)
	servers := map[string]string{
		"git.example.com": "127.0.0.1:9443", "mail.example.com": "127.0.0.1:9993"}
	for name, address := range servers {
		config := &tls.Config{Certificates: []tls.Certificate{ca.issue(name).tls}}
		listener := tls.NewListener(s.listen(address), config)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					// A protocol in which the server sends first.
					_, _ = fmt.Fprintf(conn, "* %s\r\n", name)
					_ = conn.Close()
				}()
			}
		}()
	}
	s.start()
	hear := func(name string) (string, error) {
		conn, err := s.dial("127.0.0.1:443")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		config := ca.trust(name)
		config.InsecureSkipVerify = name == ""
		text, err := io.ReadAll(tls.Client(conn, config))
		return string(text), err
	}
	for name := range servers {
		if got, err := hear(name); got != "* "+name+"\r\n" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"other.example.com", ""} {
		if got, err := hear(name); err == nil || os.IsTimeout(err) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
}

// TestEastWest checks that a proxy of another network reaches a service through the gateway, and
// that clients outside of the mesh and other host names are refused.
func TestEastWest(t *testing.T) {
	s := newSandbox(t, "east-west")
	ca := newAuthority(t)
	const workload = "spiffe://cluster.local/ns/default/sa/orders"
	s.backend("127.0.0.2:8080", &tls.Config{Certificates: []tls.Certificate{ca.issue(workload).tls},
		ClientAuth: tls.RequireAnyClientCert}, named("orders"))
	s.start()
	ask := func(name string, protocols ...string) request {
		config := ca.trust(name, ca.issue("client").tls)
		config.InsecureSkipVerify = true // the certificate contains only the workload's name
		config.NextProtos = protocols
		return request{url: "https://orders.internal:9080/", to: "127.0.0.1:15443", tls: config}
	}
	const orders = "outbound_.9080_._.orders.internal"
	if got := s.get(ask(orders, "istio")); got.status != 200 || got.from() != "orders" {
		t.Errorf("a proxy of the mesh: %+v", got)
	}
	s.refuses("a client outside the mesh", ask(orders))
	s.refuses("the host's own name", ask("orders.internal", "istio"))
	s.refuses("another port", ask("outbound_.80_._.orders.internal", "istio"))
}

// TestCertbot tests the routes. In package systemtest, TestCertbot_ObtainsAndRenewsThroughTheProxy
// runs the commands in the example's comments.
func TestCertbot(t *testing.T) {
	s := newSandbox(t, "certbot")
	ca := newAuthority(t)
	own := ca.issue("www.example.com")
	s.write("outrider/credentials/www.example.com/tls.crt", own.cert)
	s.write("outrider/credentials/www.example.com/tls.key", own.key)
	s.backend("127.0.0.1:8888", nil, named("certbot"))
	s.backend("127.0.0.1:3000", nil, named("app"))
	s.start()
	get := func(url, to string) answer {
		return s.get(request{url: url, to: to, tls: ca.trust("www.example.com")})
	}
	const host = "http://www.example.com"
	challenge := get(host+"/.well-known/acme-challenge/token", "127.0.0.1:80")
	if challenge.status != 200 || challenge.from() != "certbot" {
		t.Errorf("a challenge: %+v", challenge)
	}
	if got := get(host+"/x", "127.0.0.1:80"); got.status != 301 ||
		got.header.Get("Location") != "https://www.example.com/x" {
		t.Errorf("another request to port 80: %+v", got)
	}
	got := get("https://www.example.com/.well-known/acme-challenge/token", "127.0.0.1:443")
	if got.status != 200 || got.from() != "app" {
		t.Errorf("port 443: %+v", got)
	}
}

func TestOutboundProxy(t *testing.T) {
	s := newSandbox(t, "outbound-proxy")
	ca := newAuthority(t)
	s.write("hosts",
		"127.0.0.1 localhost\n127.0.0.2 api.example.com\n127.0.0.3 other.example.com\n")
	s.write("ssl/certs/ca-certificates.crt", ca.pem())
	var own atomic.Pointer[tls.Certificate]
	use := func(by *authority, name string) {
		issued := by.issue(name)
		own.Store(&issued.tls)
	}
	use(ca, "api.example.com")
	var asked atomic.Value
	choose := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		asked.Store(hello.ServerName)
		return own.Load(), nil
	}
	serving := &tls.Config{SessionTicketsDisabled: true, GetCertificate: choose}
	s.backend("127.0.0.2:443", serving, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // forces a handshake for the next request
		named("api")(w, r)
	})
	s.backend("127.0.0.3:443", serving, named("other"))
	s.start()

	ask := func(url string) answer {
		t.Helper()
		return s.get(request{url: url, to: "127.0.0.1:3128", proxy: true})
	}
	got := ask("http://api.example.com/x")
	if got.status != 200 || got.from() != "api" || got.header.Get("Saw-Host") != "api.example.com" {
		t.Errorf("the server on the list: %+v", got)
	}
	if asked.Load() != "api.example.com" {
		t.Errorf("the handshake asks for %v", asked.Load())
	}
	if got := ask("http://other.example.com/"); got.status != 404 {
		t.Errorf("a server that is not on the list: %+v", got)
	}
	s.eventually("the log has a line for each request", func() bool {
		text, err := os.ReadFile(filepath.Join(s.logs, "outbound.log"))
		return err == nil && strings.Contains(string(text), `"GET /x HTTP/1.1" 200`) &&
			strings.Contains(string(text), `"GET / HTTP/1.1" 404`) &&
			strings.Count(string(text), "\n") == 2
	})
	s.refuses("CONNECT", request{url: "https://api.example.com/", to: "127.0.0.1:3128", proxy: true,
		tls: ca.trust("api.example.com")})
	// The name and the CA of the certificate are verified.
	use(ca, "wrong.example.com")
	if got := ask("http://api.example.com/"); got.status != 503 {
		t.Errorf("a certificate for another name: %+v", got)
	}
	use(newAuthority(t), "api.example.com")
	if got := ask("http://api.example.com/"); got.status != 503 {
		t.Errorf("a certificate by a stranger: %+v", got)
	}
	use(ca, "api.example.com")
	if got := ask("http://api.example.com/"); got.status != 200 {
		t.Errorf("the server's own certificate again: %+v", got)
	}
}

func TestInternalAPI(t *testing.T) {
	s := newSandbox(t, "internal-api")
	servers, clients := newAuthority(t), newAuthority(t)
	api := servers.issue("api.internal")
	s.write("outrider/credentials/api/tls.crt", api.cert)
	s.write("outrider/credentials/api/tls.key", api.key)
	s.write("outrider/credentials/api/ca.crt", clients.pem())
	s.backend("127.0.0.1:3000", nil, named("application"))
	s.start()

	billing := servers.trust("api.internal", clients.issue("billing.internal").tls)
	ask := func(method, path string) answer {
		return s.get(request{method: method, url: "https://api.internal:8443" + path,
			to: "127.0.0.1:8443", tls: billing,
			header: http.Header{"X-Forwarded-Client-Cert": {"URI=forged"}}})
	}
	got := ask("GET", "/v1/orders")
	saw := got.header.Get("Saw-X-Forwarded-Client-Cert")
	if got.status != 200 || !strings.Contains(saw, "billing.internal") ||
		strings.Contains(saw, "forged") {
		t.Errorf("GET /v1/orders: %d; the application sees the client as %q", got.status, saw)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"HEAD", "/v1/orders/7", 200}, {"POST", "/v1/orders", 200}, {"POST", "/v1/orders/7", 403},
		{"DELETE", "/v1/orders", 403}, {"GET", "/metrics", 404}, {"GET", "/", 404},
	} {
		if got := ask(c.method, c.path); got.status != c.want {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, got.status, c.want)
		}
	}
	for who, config := range map[string]*tls.Config{
		"nobody":       servers.trust("api.internal"),
		"another name": servers.trust("api.internal", clients.issue("shop.internal").tls),
		"by another authority": servers.trust("api.internal",
			servers.issue("billing.internal").tls),
	} {
		s.refuses(who, request{
			url: "https://api.internal:8443/v1/orders", to: "127.0.0.1:8443", tls: config})
	}
}
