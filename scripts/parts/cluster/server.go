package cluster

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"outrider.org/outrider/scripts/parts"
)

// startServer starts etcd and the API server, and waits until the API server is ready.
func (c *Cluster) startServer() {
	c.t.Helper()
	stopEtcd := c.run(c.programs+"/etcd", nil, "--data-dir", c.data(),
		"--listen-client-urls", c.etcd, "--advertise-client-urls", c.etcd,
		"--listen-peer-urls", c.peers, "--initial-advertise-peer-urls", c.peers,
		"--initial-cluster", "default="+c.peers)
	const issuer = "https://kubernetes.default.svc"
	server, err := url.Parse(c.api)
	if err != nil {
		c.t.Fatal(err)
	}
	stopServer := c.run(c.programs+"/kube-apiserver", nil, "--etcd-servers", c.etcd,
		"--bind-address=127.0.0.1", "--secure-port="+server.Port(), "--cert-dir="+c.work+"/tls",
		"--service-account-issuer="+issuer, "--service-account-key-file="+c.work+"/sa.key",
		"--service-account-signing-key-file="+c.work+"/sa.key",
		"--api-audiences="+issuer+",istio-ca", "--token-auth-file="+c.work+"/tokens.csv",
		"--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
		"--disable-admission-plugins=ServiceAccount")
	c.stop = func() { stopServer(); stopEtcd() }
	parts.Eventually(c.t, startTime, "the API server is ready", func() bool {
		code, _ := c.request(http.MethodGet, "/readyz", "")
		return code == http.StatusOK
	})
}

// data returns the data directory of etcd.
func (c *Cluster) data() string { return filepath.Join(c.work, "etcd") }

// RestartAPIServer kills etcd and the API server, calls change, if not nil, with the data directory
// of etcd, and starts both programs again.
func (c *Cluster) RestartAPIServer(change func(data string)) {
	c.t.Helper()
	c.stop()
	if change != nil {
		change(c.data())
	}
	c.startServer()
}

// APIServerAddress returns the host:port of the API server.
func (c *Cluster) APIServerAddress() string { return strings.TrimPrefix(c.api, "https://") }

// Kubeconfig writes a kubeconfig with the address of an API server and a token, and returns its
// path. The token "secret" has all rights.
func (c *Cluster) Kubeconfig(t testing.TB, address, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	c.WriteKubeconfig(path, address, token)
	return path
}

// WriteKubeconfig writes a kubeconfig with the address of an API server and a token.
func (c *Cluster) WriteKubeconfig(path, address, token string) {
	c.t.Helper()
	text := fmt.Sprintf(kubeconfig, "https://"+address)
	c.writeFile(path, strings.Replace(text, "token: secret", "token: "+token, 1))
}

// SetAPIServerTokens sets the tokens that the API server accepts, each with all rights. They take
// effect when the API server is restarted. One of them must be "secret".
func (c *Cluster) SetAPIServerTokens(tokens ...string) {
	c.t.Helper()
	var text strings.Builder
	for _, token := range tokens {
		fmt.Fprintf(&text, "%s,admin,admin,system:masters\n", token)
	}
	c.write("tokens.csv", text.String())
}

// Send sends an object, given as YAML, and returns the body of the response. It fails the test
// unless the status is 2xx.
func (c *Cluster) Send(method, path, object string) []byte {
	c.t.Helper()
	code, text := c.request(method, path, object)
	if code < 200 || code > 299 {
		c.t.Fatalf("%s %s: %d %s", method, path, code, text)
	}
	return text
}

// CompactEtcd removes etcd's history, so that no watch can be resumed from an earlier resource
// version.
func (c *Cluster) CompactEtcd() {
	c.t.Helper()
	post := func(path, body string) string {
		response, err := c.client.Post(c.etcd+path, "application/json", strings.NewReader(body))
		if err != nil {
			c.t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			c.t.Fatalf("etcd: %s: %v %s", path, err, text)
		}
		return string(text)
	}
	key := base64.StdEncoding.EncodeToString([]byte("x"))
	_, rest, _ := strings.Cut(post("/v3/kv/range", `{"key": "`+key+`"}`), `"revision":"`)
	revision, _, _ := strings.Cut(rest, `"`)
	post("/v3/kv/compaction", `{"revision": `+revision+`, "physical": true}`)
}

// IstiodDebugPage returns a debug page of the istiod started last.
func (c *Cluster) IstiodDebugPage(path string) []byte {
	c.t.Helper()
	response, err := c.client.Get("http://" + c.debug + path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		c.t.Fatalf("istiod: %s: %v %s", path, err, text)
	}
	return text
}

// MergePatch applies a JSON merge patch to an object.
func (c *Cluster) MergePatch(path, patch string) {
	c.t.Helper()
	code, text := c.request(http.MethodPatch, path, patch)
	if code != http.StatusOK {
		c.t.Fatalf("change %s: %d %s", path, code, text)
	}
}
