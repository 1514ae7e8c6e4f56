package main

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/mcp"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/source/sourcetest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/cluster"
)

// testTokenReview runs the program with TLS. It refuses a client with a token of an API server,
// until a reload of the configuration enables the review of tokens by the API server.
func testTokenReview(t *testing.T, c *cluster.Cluster) {
	c.Create("/api/v1/namespaces/default/serviceaccounts", "metadata: {name: web}")
	directory := parts.ShortDir(t)
	authority := pkitest.NewAuthority(t, "root", nil)
	template := pkitest.LeafTemplate("server", time.Hour)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	chain, key := authority.Issue(t, template)
	secure, monitoring := parts.FreePort(t), parts.FreePort(t)
	file := filepath.Join(directory, "discoveryd.toml")
	token, roots := filepath.Join(directory, "token"), filepath.Join(directory, "roots")
	for name, text := range map[string]string{"cert": string(chain), "key": string(key),
		"roots": string(pkitest.PEM(authority.Certificate)), "token": c.Token("default", "web")} {
		write(t, filepath.Join(directory, name), text)
	}
	text := fmt.Sprintf(`[paths]
state_dir = "state"
[listen]
plaintext = ""
tls = "127.0.0.1:%d"
monitoring = "127.0.0.1:%d"
[tls]
cert_file = "cert"
key_file = "key"
[[source]]
type = "kubernetes"
kubeconfig = %q
`, secure, monitoring, c.Kubeconfig(t, c.APIServerAddress(), "secret"))
	write(t, file, text)
	start(t, file, monitoring)
	client, err := mcp.New(mcp.Options{Name: "test", Address: fmt.Sprintf("127.0.0.1:%d", secure),
		CAFile: roots, TokenFile: token, Sink: (&sourcetest.Receiver{}).AcceptUpdate,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = client.Run(t.Context()) }()
	parts.EventuallyWithObservation(t, time.Minute, "an unknown issuer", func() (bool, string) {
		why := fmt.Sprint(client.Status().Err)
		return strings.Contains(why, "[auth] jwt_issuers has no issuer"), why
	})
	write(t, file, text+"[auth]\nkubernetes_token_review = true\n")
	parts.EventuallyWithObservation(t, time.Minute, "the token is accepted", func() (bool, string) {
		now := client.Status()
		return now.Synced, fmt.Sprint(now.Err)
	})
	if log := logOf(file); strings.Contains(log, "wait for the next start") {
		t.Errorf("a change of [auth] is pending: %s", log)
	}
}
