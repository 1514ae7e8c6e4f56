package relay

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/signer"
)

func TestUpstream_Identity(t *testing.T) {
	const istiod = "spiffe://cluster.local/ns/istio-system/sa/istiod"
	for _, c := range []struct {
		server, wanted string
		valid          bool
	}{
		{istiod, istiod, true}, {istiod, "/sa/istiod", true}, {istiod, "/sa/pilot", false},
		{"https://other.test/?" + istiod, istiod, false},
	} {
		server, err := url.Parse(c.server)
		if err != nil {
			t.Fatal(err)
		}
		state := tls.ConnectionState{
			PeerCertificates: []*x509.Certificate{{URIs: []*url.URL{server}}},
		}
		if err := (Upstream{ServerIdentity: c.wanted}).verify(state); (err == nil) != c.valid {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestUpstream_Authentication connects to a real istiod over TLS.
func TestUpstream_Authentication(t *testing.T) {
	root := pkitest.NewAuthority(t, "root", nil)
	istiod := signer.Start(t, root)
	folder := t.TempDir()
	file := func(name string, text []byte) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	roots := file("root.pem", pkitest.PEM(root.Certificate))
	other := file("other.pem", pkitest.PEM(pkitest.NewAuthority(t, "other", nil).Certificate))
	token := file("token", []byte(istiod.Token(t, time.Hour)))
	expired := file("expired", []byte(istiod.Token(t, -time.Hour)))
	chain, key := root.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	cert, keyFile := file("cert.pem", chain), file("key.pem", key)

	workload := func() (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(chain, key)
		return &pair, err
	}
	good := Upstream{Addresses: []string{istiod.Address}, TLS: true, RootFile: roots, TokenFile: token}
	cases := map[string]struct {
		change func(*Upstream)
		want   string // part of the expected error; "": the connection is accepted
	}{
		"token": {func(*Upstream) {}, ""},
		"certificate": {func(u *Upstream) {
			u.TokenFile, u.CertFile, u.KeyFile = "", cert, keyFile
		}, ""},
		"workload's certificate": {func(u *Upstream) {
			u.TokenFile, u.UseWorkloadCertificate = "",
				true
		}, ""},
		"plaintext": {func(u *Upstream) { *u = serverAt(istiod.PlaintextAddress) },
			""},
		"nothing": {func(u *Upstream) { u.TokenFile = "" }, "Unauthenticated"},
		"expired token": {func(u *Upstream) { u.TokenFile = expired },
			"expired: the token expired on"},
		"no token": {func(u *Upstream) { u.TokenFile = filepath.Join(folder, "none") },
			"cannot read token"},
		"other root":   {func(u *Upstream) { u.RootFile = other }, "unknown authority"},
		"other name":   {func(u *Upstream) { u.ServerName = "pilot.test" }, "not pilot.test"},
		"no roots":     {func(u *Upstream) { u.RootFile = token }, "token"},
		"pilot's name": {func(u *Upstream) { u.ServerIdentity = "/sa/pilot" }, "or ends in"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			upstream := good
			c.change(&upstream)
			r := startRelayWith(t, Options{Upstream: upstream, Certificate: workload})
			envoy := r.connect(t, true, false)
			envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
			if c.want == "" {
				response := decode(envoy, &discoveryv3.DeltaDiscoveryResponse{})
				if len(response.Resources) == 0 {
					t.Errorf("response %v", response)
				}
				return
			}
			last := ""
			parts.Eventually(t, time.Minute, "the error has "+c.want, func() bool {
				last = r.Status().Error
				return strings.Contains(r.condition(conditionAway), c.want)
			})
			if !strings.Contains(last, c.want) {
				t.Errorf("status %q", last)
			}
		})
	}
	t.Run("debug", func(t *testing.T) {
		upstream := good
		upstream.Namespace, upstream.ServiceAccount = "default", "web"
		r := startRelayWith(t, Options{Upstream: upstream})
		envoy := r.connect(t, true, false)
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
		envoy.next()
		if _, err := r.QueryDebug(t.Context(), "syncz"); err == nil ||
			!strings.Contains(err.Error(), "not available for current identity") {
			t.Errorf("syncz: %v", err)
		}
		tap := &DebugServer{Server: r.Server, Address: fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t)),
			Users: []uint32{uint32(os.Getuid())}, Conditions: r.board, Logger: r.options.Logger}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- tap.Run(ctx) }()
		<-tap.Ready()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + tap.Address +
			"/debug/config_dump?proxyID=web.default")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK ||
			!strings.Contains(string(body), "BootstrapConfigDump") &&
				!strings.Contains(string(body), "ClustersConfigDump") {
			t.Errorf("config_dump: %s, %.200s, %v", response.Status, body, err)
		}
		_ = response.Body.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Run("rotation", func(t *testing.T) {
		upstream := good
		upstream.RootFile = file("rotated.pem", pkitest.PEM(pkitest.NewAuthority(t, "before",
			nil).Certificate))
		r := startRelay(t, upstream, "")
		envoy := r.connect(t, true, false)
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{Node: testNode(t), TypeUrl: clusterType})
		parts.Eventually(t, time.Minute, "the root is not accepted",
			func() bool { return r.condition(conditionAway) != "" })
		file("rotated.pem", pkitest.PEM(root.Certificate))
		envoy.next()
		parts.Eventually(t, time.Minute, "connected",
			func() bool { return r.Status().State == Connected })
	})
}
