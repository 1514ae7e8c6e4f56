package fetch_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"outrider.org/outrider/agent/fetch"
)

// Whether a request is refused depends on the address to which it would connect. Only hosts that
// are allowed by name may have a local address.
func TestTransport_RefusesLocalAddresses(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("content"))
	}))
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	client := fetch.NewClient(fetch.NewTransport(func(host string) bool {
		return host == "localhost"
	}, nil))
	for host, refused := range map[string]bool{"127.0.0.1": true, "0.0.0.0": true,
		"[::ffff:127.0.0.1]": true, "localhost": false, "LOCALHOST": false} {
		body, err := fetch.Get(t.Context(), client, "http://"+host+":"+port, 100)
		if refused && (err == nil || !strings.Contains(err.Error(), "is a local address")) ||
			!refused && string(body) != "content" {
			t.Errorf("%s: %q, %v", host, body, err)
		}
	}
}

func TestIsLocal(t *testing.T) {
	for text, want := range map[string]bool{"127.8.0.1": true, "::1": true, "169.254.169.254": true,
		"fe80::1%eth0": true, "::ffff:169.254.169.254": true, "64:ff9b::a9fe:a9fe": true,
		"64:ff9b::808:808": false, "0.0.0.0": true, "::": true, "192.0.0.192": true,
		"64:ff9b:1::a9fe:a9fe": true, "64:ff9b:1:a9fe:a9:fe00::": true, "64:ff9b:1:a9:fe:a9fe::": true,
		"64:ff9b:1::a9:fea9:fe00:0": true, "64:ff9b:1::808:808": false, "64:ff9b:1:808:8:800::": false,
		"2002:a9fe:a9fe::1": true, "2002:7f00:1::": true, "2002:808:808::1": false,
		"fd00:ec2::254": true, "10.0.0.1": false, "192.168.1.1": false, "2001:db8::1": false} {
		if got := fetch.IsLocal(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestTransport_RefusesOwnAddresses requests a server on a non-loopback address of this host.
func TestTransport_RefusesOwnAddresses(t *testing.T) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	own := ""
	for _, a := range addresses {
		if ip := a.(*net.IPNet).IP; !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			own = ip.String()
		}
	}
	if own == "" {
		t.Fatalf("this host has no address but loopback: %v", addresses)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(own, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	for _, allowed := range []bool{false, true} {
		client := fetch.NewClient(fetch.NewTransport(func(string) bool { return allowed }, nil))
		_, err := fetch.Get(t.Context(), client, server.URL, 1<<10)
		if want := "is a local address"; err == nil ||
			strings.Contains(err.Error(), want) == allowed {
			t.Errorf("allowed: %v: %v", allowed, err)
		}
	}
}

func TestGet_BoundsWhatServersSend(t *testing.T) {
	var redirects int
	server := httptest.NewTLSServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/large":
				_, _ = w.Write([]byte(strings.Repeat("x", 1<<10+1)))
			case "/plain":
				http.Redirect(w, r, "http://192.0.2.1/secret", http.StatusFound)
			case "/circle":
				redirects++
				http.Redirect(w, r, "/circle", http.StatusFound)
			case "/once":
				http.Redirect(w, r, "/", http.StatusFound)
			case "/absent":
				w.WriteHeader(http.StatusNotFound)
			default:
				_, _ = w.Write([]byte("content"))
			}
		}))
	defer server.Close()
	client := fetch.NewClient(server.Client().Transport)
	for path, want := range map[string]string{"/large": "the response is larger than 1 KiB",
		"/plain":  "the server redirects to a URL without https, or too often",
		"/circle": "the server redirects to a URL without https, or too often",
		"/absent": "the server answers 404 Not Found", "/once": "", "/": ""} {
		body, err := fetch.Get(t.Context(), client, server.URL+path, 1<<10)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want || want == "" && string(body) != "content" {
			t.Errorf("%s: %q, %v", path, body, err)
		}
	}
	if redirects != 4 {
		t.Errorf("%d redirects", redirects)
	}
}
