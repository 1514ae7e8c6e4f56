package main_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/parts/signer"
	"outrider.org/outrider/scripts/rig"
)

// issued is an agent whose certificates a real istiod signs.
type issued struct {
	*identified
	signer *signer.Signer
	gate   *gate // between the agent and istiod
}

// newIssued creates an agent with a token that is valid for the given time. more contains
// additional keys of [identity].
func newIssued(t *testing.T, token time.Duration, more string) *issued {
	t.Helper()
	i := &issued{identified: &identified{t: t, port: parts.FreePort(t)}}
	i.root = pkitest.NewAuthority(t, "root", nil)
	i.signer = signer.Start(t, i.root, "ISTIO_MULTIROOT_MESH=true")
	i.gate = newGate(t, i.signer.Address)
	i.Rig = rig.New(t, rig.Options{Race: true})
	i.WriteFile("override.yaml", fmt.Sprintf(secretListener, i.port))
	i.WriteFile("root.pem", string(pkitest.PEM(i.root.Certificate)))
	i.WriteFile("token", i.signer.Token(t, token))
	if err := os.Mkdir(i.path("output"), 0o700); err != nil {
		t.Fatal(err)
	}
	i.set(more)
	return i
}

func (i *issued) set(more string) {
	i.SetTOML(fmt.Sprintf(`[node]
service_account = "web"
[envoy]
bootstrap_override = %q
[identity]
provider = "istiod"
ca_address = %q
root_ca_file = %q
token_file = %q
output_dir = %q
%s`, i.path("override.yaml"), i.gate.address, i.path("root.pem"), i.path("token"),
		i.path("output"), more))
}

// condition reports whether the condition with a code is active, and its sentence contains a text.
func (i *issued) condition(code, text string) (found bool) {
	var status api.Status
	i.RunOutriderJSON(&status, "status", "--json")
	for _, c := range status.Conditions {
		found = found || c.Code == code && strings.Contains(c.Sentence, text)
	}
	return found
}

// workload returns the workload's certificate as `outrider certs` shows it.
func (i *issued) workload() api.Identity {
	var identities []api.Identity
	i.RunOutriderJSON(&identities, "certs", "--json")
	for _, identity := range identities {
		if identity.Name == "default" {
			return identity
		}
	}
	return api.Identity{}
}

// awaitAnother waits until Envoy presents another certificate than before, and returns it.
func (i *issued) awaitAnother(before []byte) (chain []byte) {
	i.t.Helper()
	rig.Eventually(i.t, time.Minute, "Envoy presents another certificate", func() bool {
		var err error
		chain, err = i.presented()
		return err == nil && !bytes.Equal(chain, before)
	})
	return chain
}

func TestIstiod_IssuesRenewsAndReports(t *testing.T) {
	t.Parallel()
	i := newIssued(t, time.Hour, "")
	i.StartReady()
	first := i.awaitAnother(nil)
	about := i.workload()
	if about.Source != "istiod" || about.SPIFFEID != "spiffe://cluster.local/ns/default/sa/web" ||
		time.Until(about.Renewal) < 11*time.Hour || time.Until(about.Renewal) > 13*time.Hour {
		t.Errorf("certs: %+v", about)
	}
	if out := i.RunOutrider("certs", "-o", "wide").Stdout + i.RunOutrider("certs").Stdout; !strings.Contains(
		out, "in 1") {
		t.Errorf("outrider certs does not show the next renewal:\n%s", out)
	}

	// A change of ttl takes effect without a new epoch: the agent immediately requests a
	// certificate that is valid for ten seconds.
	i.set("ttl = \"10s\"\n")
	if result := i.RunOutrider("reload"); result.ExitCode != 0 {
		t.Fatalf("reload: %+v\n%s", result, i.Daemon().Output())
	}
	second := i.awaitAnother(first)
	i.awaitAnother(second)

	// An expired token replaces the valid one, and later another valid token replaces it.
	i.WriteFile("token", i.signer.Token(t, -time.Minute))
	rig.Eventually(t, time.Minute, "the expired token is reported", func() bool {
		return i.condition("certificate-not-renewed", "token: the token expired on") ||
			i.condition("certificate-expired", "token: the token expired on")
	})
	last, err := i.presented()
	i.WriteFile("token", i.signer.Token(t, time.Hour))
	i.awaitAnother(last)
	rig.Eventually(t, time.Minute, "the condition ends", func() bool {
		return !i.condition("certificate-not-renewed", "") && !i.condition("certificate-expired", "")
	})
	_, metrics, metricsErr := i.GetHostThroughEnvoy("localhost", i.Ports.Status,
		"/stats/prometheus")
	for _, metric := range []string{
		`outrider_secret_expiry_timestamp_seconds{resource="default",source="istiod"}`,
		`outrider_secret_renewals_total{resource="default"}`,
		`outrider_secret_failures_total{reason="expired",resource="default"}`,
	} {
		if !strings.Contains(metrics, metric) {
			t.Errorf("no metric %s: %v, %v", metric, err, metricsErr)
		}
	}

	// The agent is killed. The next one adopts the epoch, and renews the certificate.
	last, err = i.presented()
	i.KillAgent()
	i.Start()
	i.WaitReady(time.Minute)
	i.awaitAnother(last)
	if err != nil {
		t.Error(err)
	}
	if epochs, err := i.Epochs(); err != nil || len(epochs) != 1 {
		t.Errorf("a renewal started an epoch: %v, %v", epochs, err)
	}
	key, err := filepath.EvalSymlinks(i.path("output/key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(i.Dir, key)
	if err != nil {
		t.Fatal(err)
	}
	i.noKey(relative)
}
