package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
)

// agentTLS has the certificates of servers and agents.
type agentTLS struct {
	chain, key, roots string // files
	pair              tls.Certificate
	pool              *x509.CertPool
}

func newAgentTLS(t *stage) *agentTLS {
	root, folder := pkitest.NewAuthority(t, "root", nil), parts.ShortDir(t)
	leaf := pkitest.LeafTemplate("web", 24*time.Hour)
	leaf.URIs[0].Path = "/ns/ns/sa/web"
	chain, key := root.Issue(t, leaf)
	a := &agentTLS{pool: x509.NewCertPool(), chain: filepath.Join(folder, "cert.pem"),
		key: filepath.Join(folder, "key.pem"), roots: filepath.Join(folder, "root.pem")}
	a.pool.AddCert(root.Certificate)
	for path, text := range map[string][]byte{a.chain: chain, a.key: key,
		a.roots: pkitest.PEM(root.Certificate)} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if a.pair, err = tls.X509KeyPair(chain, key); err != nil {
		t.Fatal(err)
	}
	return a
}

// client returns the configuration of an agent's connections.
func (a *agentTLS) client(int) *tls.Config {
	return &tls.Config{RootCAs: a.pool, Certificates: []tls.Certificate{a.pair},
		ServerName: "web.test"}
}

// start starts a discovery server with mutual TLS.
func (a *agentTLS) start(t *stage, folder string) *discoveryServer {
	s := &discoveryServer{debounce: pushDebounce,
		address: fmt.Sprintf("127.0.0.1:%d", parts.FreePort(t))}
	s.process = parts.Discoveryd{MeshFolder: folder, TLS: s.address, ExtraConfig: fmt.Sprintf(
		"[tls]\ncert_file = %q\nkey_file = %q\nclient_ca_file = %q\n[auth]\nrequire = \"mtls\"\n",
		a.chain, a.key, a.roots)}.Command(t)
	s.start(t)
	return s
}
