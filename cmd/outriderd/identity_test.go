package main_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// secretListener is a bootstrap override with a listener that requests its certificate and the
// trusted roots over SDS.
const secretListener = `static_resources:
  listeners:
  - name: mutual
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_certificate_sds_secret_configs: [{name: default, sds_config: &sds {
              resource_api_version: V3, api_config_source: {
                api_type: GRPC, transport_api_version: V3,
                grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]}}}]
            validation_context_sds_secret_config: {name: ROOTCA, sds_config: *sds}
      filters:
      - name: echo
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo
`

// identified is an agent that reads its certificate from files. A listener of its Envoy presents
// the certificate.
type identified struct {
	*rig.Rig
	t    *testing.T
	root *pkitest.Authority
	port int
}

func newIdentified(t *testing.T) *identified {
	t.Helper()
	i := &identified{t: t, root: pkitest.NewAuthority(t, "root", nil), port: parts.FreePort(t)}
	i.Rig = rig.New(t, rig.Options{Race: true})
	i.WriteFile("override.yaml", fmt.Sprintf(secretListener, i.port))
	i.configure("files")
	return i
}

func (i *identified) configure(provider string) {
	i.SetTOML(fmt.Sprintf(`[identity]
provider = %q
cert_file = %q
key_file = %q
root_ca_file = %q
wait = "1s"
[envoy]
bootstrap_override = %q
`, provider, i.path("cert.pem"), i.path("key.pem"), i.path("root.pem"), i.path("override.yaml")))
}

func (i *identified) path(name string) string { return filepath.Join(i.Dir, name) }

// issue replaces the files with a new certificate, its key and the root.
func (i *identified) issue() (chain []byte) {
	i.t.Helper()
	chain, key := i.root.Issue(i.t, pkitest.LeafTemplate("web", time.Hour))
	for name, text := range map[string][]byte{
		"cert.pem": chain, "key.pem": key, "root.pem": pkitest.PEM(i.root.Certificate),
	} {
		if err := os.WriteFile(i.path(name+".next"), text, 0o600); err != nil {
			i.t.Fatal(err)
		}
		if err := os.Rename(i.path(name+".next"), i.path(name)); err != nil {
			i.t.Fatal(err)
		}
	}
	return chain
}

// presented returns the certificate that the listener presents. Client and server certificates must
// be issued by the root.
func (i *identified) presented() ([]byte, error) { return i.presentedTo(i.root, i.root) }

// presentedTo connects with a certificate that client issues, and returns the certificate that the
// listener presents. It returns an error if server has not issued the listener's certificate, or if
// the listener refuses the connection.
func (i *identified) presentedTo(client, server *pkitest.Authority) ([]byte, error) {
	chain, key := client.Issue(i.t, pkitest.LeafTemplate("client", time.Hour))
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate)
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{Timeout: 5 * time.Second},
		Config: &tls.Config{
			InsecureSkipVerify: true, // VerifyConnection verifies the chain; there is no host name
			Certificates:       []tls.Certificate{pair},
			VerifyConnection: func(state tls.ConnectionState) error {
				chain := x509.NewCertPool()
				for _, c := range state.PeerCertificates[1:] {
					chain.AddCert(c)
				}
				_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots,
					Intermediates: chain})
				return err
			},
		},
	}
	c, err := dialer.DialContext(i.t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", i.port))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		return nil, err
	}
	// in TLS 1.3, a refusal arrives after the handshake
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return nil, err
	}
	return pkitest.PEM(c.(*tls.Conn).ConnectionState().PeerCertificates[0]), nil
}

func (i *identified) awaitPresented(want []byte) {
	i.t.Helper()
	rig.Eventually(i.t, time.Minute, "the certificate is presented", func() bool {
		got, err := i.presented()
		return err == nil && bytes.Equal(got, want)
	})
}

func TestIdentity_EnvoyPresentsTheFilesCertificate(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	chain := i.issue()
	i.StartReady()
	i.awaitPresented(chain)
	chain = i.issue()
	i.awaitPresented(chain)
	if epochs, err := i.Epochs(); err != nil || len(epochs) != 1 {
		t.Errorf("a rotation started an epoch: %v, %v", epochs, err)
	}

	var identities []api.Identity
	i.RunOutriderJSON(&identities, "certs", "--json")
	if len(identities) != 2 || identities[1].Name != "default" || identities[1].Source != "files" ||
		identities[1].SPIFFEID != "spiffe://cluster.local/ns/default/sa/web" {
		t.Errorf("certs: %+v", identities)
	}
	if out := i.RunOutrider("certs").Stdout; !strings.Contains(out, "█") {
		t.Errorf("outrider certs has no bar:\n%s", out)
	}
	_, metrics, err := i.GetHostThroughEnvoy("localhost", i.Ports.Status, "/stats/prometheus")
	const metric = `outrider_secret_expiry_timestamp_seconds{resource="default",source="files"}`
	if err != nil || !strings.Contains(metrics, metric) {
		t.Errorf("no metric %s: %v", metric, err)
	}
	i.noKey("key.pem")
}

// noKey checks that neither the agent's output nor a file that it writes contains the private key.
func (i *identified) noKey(name string) {
	i.t.Helper()
	text, err := os.ReadFile(i.path(name))
	if err != nil {
		i.t.Fatal(err)
	}
	secret := strings.Split(string(text), "\n")[1] // first line of the key's base64 text
	shown := map[string]string{"the log": i.Daemon().Output()}
	for _, command := range [][]string{{"status", "--json"}, {"certs", "--json"},
		{"proxy", "secrets", "--json"}, {"config", "show"}, {"proxy", "bootstrap"}} {
		shown["outrider "+strings.Join(command, " ")] = i.RunOutrider(command...).Stdout
	}
	err = filepath.WalkDir(i.Dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || path == i.path(name) {
			return err
		}
		text, err := os.ReadFile(path)
		shown[path] = string(text)
		return err
	})
	if err != nil {
		i.t.Error(err)
	}
	for where, text := range shown {
		if strings.Contains(text, secret) {
			i.t.Errorf("%s has the private key", where)
		}
	}
}

// awaitCondition waits for an active condition of severity error with a code, whose sentence
// contains a text.
func (i *identified) awaitCondition(code, text string) {
	i.t.Helper()
	rig.Eventually(i.t, time.Minute, code+" with "+text, func() bool {
		var status api.Status
		i.RunOutriderJSON(&status, "status", "--json")
		return slices.ContainsFunc(status.Conditions, func(c condition.Condition) bool {
			return c.Code == code && c.Severity == condition.Error && strings.Contains(c.Sentence, text)
		})
	})
}

// Without the certificate files, the agent reports that Envoy waits for them. Envoy becomes live
// once they exist.
func TestIdentity_FilesComeLate(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	i.Start()
	i.AwaitEpochState(api.EpochStarting, time.Minute)
	i.awaitCondition("secret-unavailable", i.path("cert.pem"))
	i.awaitPresented(i.issue())
}

// After a reload that configures the provider, the new epoch has its certificate before it is live.
func TestIdentity_ProviderIsTurnedOnByAReload(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	i.SetTOML("") // begin without a provider and without the listener
	chain := i.issue()
	i.StartReady()
	i.configure("files")
	if result := i.RunOutrider("reload"); result.ExitCode != 0 {
		t.Fatalf("reload: %+v\n%s", result, i.Daemon().Output())
	}
	i.awaitPresented(chain)
	i.SetTOML("")
	if result := i.RunOutrider("reload"); result.ExitCode != 0 {
		t.Fatalf("reload: %+v\n%s", result, i.Daemon().Output())
	}
	rig.Eventually(t, time.Minute, "no certificate is shown once the old Envoy is gone", func() bool {
		var identities []api.Identity
		i.RunOutriderJSON(&identities, "certs", "--json")
		return len(identities) == 0
	})
	if out := i.Daemon().Output(); strings.Contains(out, "no provider") {
		t.Errorf("the old Envoy's secrets are reported:\n%s", out)
	}
}

// With restart_on_change, a new certificate starts an epoch. Files rewritten with the same content
// start none.
func TestIdentity_RestartOnChange(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	i.WriteFile("conf.d/60-restart.toml", "[identity]\nrestart_on_change = true\n")
	i.issue()
	i.StartReady()
	first := i.LiveEpoch()
	key, err := os.ReadFile(i.path("key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	i.WriteFile("key.pem", string(key))
	if result := i.RunOutrider("reload", "--if-changed"); result.ExitCode != 0 {
		t.Fatalf("reload: %+v", result)
	}
	if now := i.LiveEpoch(); now.Number != first.Number {
		t.Errorf("epoch %d is live: the same files started an epoch", now.Number)
	}
	chain := i.issue()
	rig.Eventually(t, time.Minute, "a new epoch is live", func() bool {
		epochs, err := i.Epochs()
		return err == nil && len(epochs) > 0 && epochs[len(epochs)-1].Number > first.Number
	})
	i.awaitPresented(chain)
}

// The CA certificates in MeshConfig are trusted besides those of the provider. Changes of
// MeshConfig take effect.
func TestIdentity_RootsOfTheMeshConfiguration(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	other := pkitest.NewAuthority(t, "other", nil)
	pem := strings.ReplaceAll(string(pkitest.PEM(other.Certificate)), "\n", "\n    ")
	with := "caCertificates:\n- pem: |\n    " + pem + "\n"
	i.WriteFile("mesh.yaml", with)
	i.WriteFile("conf.d/60-mesh.toml",
		"[discovery]\nmesh_config_file = \""+i.path("mesh.yaml")+"\"\n")
	chain := i.issue()
	i.StartReady()
	i.awaitPresented(chain)
	accepts := func(client *pkitest.Authority) bool {
		_, err := i.presentedTo(client, i.root)
		return err == nil
	}
	if !accepts(other) {
		t.Error("the added root is not trusted at the start")
	}
	i.WriteFile("conf.d/70-log.toml", "[log]\nlevel = \"info\"\n")
	if result := i.RunOutrider("reload"); result.ExitCode != 0 || !accepts(other) {
		t.Errorf("after a reload the added root is gone: %+v", result)
	}
	i.WriteFile("mesh.yaml", "")
	rig.Eventually(t, time.Minute, "the added root is gone",
		func() bool { return !accepts(other) && accepts(i.root) })
	i.WriteFile("mesh.yaml", with)
	rig.Eventually(t, time.Minute, "both roots are trusted",
		func() bool { return accepts(other) && accepts(i.root) })
}
