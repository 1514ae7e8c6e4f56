package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// spireServer is the configuration of a SPIRE server whose CA is issued by a CA of the test.
const spireServer = `server {
	bind_address = "127.0.0.1"
	bind_port = %[2]d
	socket_path = "%[1]s/server.sock"
	trust_domain = "cluster.local"
	data_dir = "%[1]s"
}
plugins {
	DataStore "sql" { plugin_data { database_type = "sqlite3", connection_string = "%[1]s/server.db" } }
	NodeAttestor "join_token" { plugin_data {} }
	KeyManager "memory" { plugin_data {} }
	UpstreamAuthority "disk" {
		plugin_data { cert_file_path = "%[1]s/ca.pem", key_file_path = "%[1]s/ca-key.pem" }
	}
}
`

const spireAgent = `agent {
	data_dir = "%[1]s/agent"
	server_address = "127.0.0.1"
	server_port = %[2]d
	socket_path = "%[1]s/spire.sock"
	trust_domain = "cluster.local"
	insecure_bootstrap = true
}
plugins {
	NodeAttestor "join_token" { plugin_data {} }
	KeyManager "memory" { plugin_data {} }
	WorkloadAttestor "unix" { plugin_data {} }
}
`

// startSPIRE runs a SPIRE server with an entry for Envoy's user, and a SPIRE agent with the socket
// dir/spire.sock, until the test ends.
func (i *identified) startSPIRE(dir string) {
	t := i.t
	t.Helper()
	out, err := exec.Command(filepath.Join(parts.RepositoryRoot(), "scripts", "get-spire")).Output()
	if err != nil {
		t.Fatalf("get SPIRE: %v", err)
	}
	programs, port := strings.TrimSpace(string(out)), parts.FreePort(t)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("ca.pem", string(pkitest.PEM(i.root.Certificate)))
	write("ca-key.pem", string(pkitest.KeyPEM(t, i.root.Key)))
	run := func(program string, arguments ...string) {
		command := exec.Command(filepath.Join(programs, program), arguments...)
		command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		log, err := os.Create(filepath.Join(dir, program+".log"))
		if err != nil {
			t.Fatal(err)
		}
		command.Stdout, command.Stderr = log, log
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = command.Process.Kill()
			_ = command.Wait()
			if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
				t.Logf("%s:\n%s", program, text)
			}
		})
	}
	server := func(arguments ...string) (string, error) {
		command := exec.Command(filepath.Join(programs, "spire-server"),
			append(arguments, "-socketPath", filepath.Join(dir, "server.sock"))...)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	run("spire-server", "run", "-config", write("server.conf", fmt.Sprintf(spireServer, dir, port)))
	const node = "spiffe://cluster.local/vm"
	var token string
	rig.Eventually(t, time.Minute, "the SPIRE server has a join token", func() bool {
		out, err := server("token", "generate", "-spiffeID", node)
		if err != nil {
			return false
		}
		_, token, _ = strings.Cut(strings.TrimSpace(out), "Token: ")
		return token != ""
	})
	if out, err := server("entry", "create", "-parentID", node, "-spiffeID",
		"spiffe://cluster.local/ns/default/sa/web", "-selector", fmt.Sprintf("unix:uid:%d", os.Getuid()),
		"-x509SVIDTTL", "60"); err != nil {
		t.Fatalf("create an entry: %v: %s", err, out)
	}
	run("spire-agent", "run", "-joinToken", token, "-config",
		write("agent.conf", fmt.Sprintf(spireAgent, dir, port)))
}

// TestIdentity_EnvoyGetsItsCertificateFromSPIRE: Envoy receives its certificate, and the renewals
// of the certificate, from a real SPIRE agent.
func TestIdentity_EnvoyGetsItsCertificateFromSPIRE(t *testing.T) {
	t.Parallel()
	i := newIdentified(t)
	dir := parts.ShortDir(t)
	i.WriteFile("conf.d/60-spire.toml",
		"[identity]\nprovider = \"spire\"\ncert_file = \"\"\nkey_file = \"\"\nroot_ca_file = \"\"\n"+
			"spire_socket = \""+dir+"/spire.sock\"\n")
	i.Start()
	i.AwaitEpochState(api.EpochStarting, time.Minute)
	i.awaitCondition("secret-unavailable", "spire_socket")
	i.startSPIRE(dir)
	shown := func() api.Identity {
		var identities []api.Identity
		i.RunOutriderJSON(&identities, "certs", "--json")
		all := map[string]api.Identity{}
		for _, s := range identities {
			all[s.Name] = s
		}
		if all["ROOTCA"].Source != "spire" {
			return api.Identity{}
		}
		return all["default"]
	}
	rig.Eventually(t, 2*time.Minute, "both secrets are shown", func() bool {
		now := shown()
		return now.Source == "spire" && now.SPIFFEID == "spiffe://cluster.local/ns/default/sa/web"
	})
	rig.Eventually(t, time.Minute, "Envoy presents the certificate and accepts clients", func() bool {
		_, err := i.presented()
		return err == nil
	})
	before := shown().Serial
	rig.Eventually(t, 2*time.Minute, "the renewed certificate is shown", func() bool {
		return shown().Serial != before
	})
}
