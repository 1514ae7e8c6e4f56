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

// The address counts to which a connection would be made, not the name.
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
		"fd00:ec2::254": true, "10.0.0.1": false, "192.168.1.1": false, "2001:db8::1": false} {
		if got := fetch.IsLocal(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
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
	for path, want := range map[string]string{"/large": "it is larger than 1 KiB",
		"/plain": "it redirects to http, or too often", "/circle": "it redirects to http, or too often",
		"/absent": "it answers 404 Not Found", "/once": "", "/": ""} {
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
