package relay

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"outrider.org/outrider/agent/wasm/wasmtest"
	"outrider.org/outrider/scripts/parts"
)

// TestModules_RedirectsAndTheirSecrets checks that a server of Wasm modules cannot redirect the
// relay to plaintext HTTP or to local addresses, and that no error contains the presigned URLs or
// passwords.
func TestModules_RedirectsAndTheirSecrets(t *testing.T) {
	before := http.DefaultClient.Transport
	defer func() { http.DefaultClient.Transport = before }()
	for name, c := range map[string]struct{ from, to, err string }{
		"plaintext":        {"https://first.test/m", "http://192.0.2.1/m?sig=secret", "to http:// refused"},
		"image, plaintext": {"oci://first.test/m", "http://192.0.2.1/m?sig=secret", "to http:// refused"},
		"metadata":         {"https://first.test/m", "https://169.254.169.254/m?sig=secret", "a local address"},
		"image, metadata":  {"oci://first.test/m", "https://[fe80::1%25eth0]/m", "a local address"},
		"localhost":        {"http://first.test/m", "https://localhost/m?sig=secret", "a local address"},
		"mapped":           {"http://first.test/m", "http://[::ffff:127.0.0.1]/m", "a local address"},
		"local to local":   {"http://127.0.0.1/m", "http://127.0.0.1:1/gone?sig=secret", "a local address"},
		"image, away":      {"oci://first.test/m", "https://192.0.2.1/gone?sig=secret", "/gone"},
		"image, forbidden": {"oci://first.test/m", "https://192.0.2.1/403?sig=secret", "/403\": response"},
		"password":         {"https://user:secret@first.test/404?sig=secret", "", "/404: 404"},
		"broken": {"https://first.test/m", "https://192.0.2.1:x?sig=secret",
			"parse Location header"},
	} {
		t.Run(name, func(t *testing.T) {
			http.DefaultClient.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
				answer := &http.Response{Request: r, Header: http.Header{"Location": {c.to}},
					Body:   io.NopCloser(strings.NewReader("")),
					Status: "404 Not Found", StatusCode: http.StatusNotFound}
				switch {
				case strings.HasSuffix(r.URL.Path, "/gone"):
					return nil, errors.New("connection refused")
				case strings.HasSuffix(r.URL.Path, "/403"):
					answer.StatusCode = http.StatusForbidden
				case c.to != "":
					answer.StatusCode = http.StatusFound
				}
				return answer, nil
			})
			filter, err := anypb.New(&httpwasmv3.Wasm{Config: &wasmv3.PluginConfig{
				Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: remoteVM(c.from, "", "")}}})
			if err != nil {
				t.Fatal(err)
			}
			extension, err := anypb.New(&corev3.TypedExtensionConfig{TypedConfig: filter})
			if err != nil {
				t.Fatal(err)
			}
			body, err := proto.Marshal(extension)
			if err != nil {
				t.Fatal(err)
			}
			var output strings.Builder
			m := New(Options{Logger: slog.New(slog.NewTextHandler(&output, nil))}).modules
			_, err = m.resource(t.Context(), body)
			if err == nil || !strings.Contains(err.Error(), c.err) ||
				strings.Contains(err.Error()+output.String(), "secret") {
				t.Errorf("got %v, want %s; log: %s", err, c.err, output.String())
			}
		})
	}
}

// TestModules_LocalAddressesAreRefused checks that Wasm modules are not fetched from this host,
// link-local addresses or metadata services, whatever host name is used, nor after a redirect. A
// server at such an address receives no request.
func TestModules_LocalAddressesAreRefused(t *testing.T) {
	var asked atomic.Int32
	local := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(wasmtest.EmptyModule))
	}))
	defer local.Close()
	_, port, err := net.SplitHostPort(local.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	redirect := httptest.NewServer(http.RedirectHandler(local.URL, http.StatusFound))
	defer redirect.Close()
	away := elsewhere(t, parts.NewOtherHost(t), redirect.Listener.Addr().String())
	m := New(Options{Logger: slog.New(slog.DiscardHandler)}).modules
	for _, from := range []string{"http://127.0.0.1:" + port, "http://localhost:" + port,
		"http://0.0.0.0:" + port, "http://[::ffff:127.0.0.1]:" + port, "http://[::1]:" + port,
		"http://169.254.169.254", "https://169.254.169.254", "http://[fd00:ec2::254]",
		"http://192.0.0.192", "oci://127.0.0.1:" + port + "/p/m", "oci://localhost:" + port + "/p/m",
		"oci://169.254.169.254/p/m", "http://" + away} {
		vm := remoteVM(from, "", "")
		// the address of the other host, which redirects to a local address, is permitted, and the
		// connection to it may be slow
		if strings.HasSuffix(from, away) {
			vm.Code.GetRemote().HttpUri.Timeout = durationpb.New(moduleTime)
		}
		_, err := m.module(t.Context(), vm)
		if err == nil || !strings.Contains(err.Error(), "local address") {
			t.Errorf("%s: %v", from, err)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests", n)
	}
}

// TestModules_WrongHashIsNotDisclosed checks that the error sent to the upstream server does not
// contain the checksum of the fetched module. The log contains it.
func TestModules_WrongHashIsNotDisclosed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("credentials"))
	}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var output strings.Builder
	m := New(Options{Logger: slog.New(slog.NewTextHandler(&output, nil))}).modules
	m.client = localClient
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte("credentials")))
	_, err := m.module(t.Context(), remoteVM(server.URL, strings.Repeat("0", 64), ""))
	if err == nil || strings.Contains(err.Error(), sum) || !strings.Contains(output.String(), sum) {
		t.Errorf("%v; log: %s", err, output.String())
	}
}
