package main_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// expiry returns the expiry of the certificate that Envoy presents.
func (i *issued) expiry() (time.Time, error) {
	chain, err := i.presented()
	if err != nil {
		return time.Time{}, err
	}
	block, _ := pem.Decode(chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, err
	}
	return leaf.NotAfter, nil
}

// istiod is unreachable for 80 % of a certificate's lifetime. Envoy always has a valid certificate,
// and the agent reports the failed renewal with the remaining time.
func TestIstiod_AwayForMostOfALifetime(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second
	i := newIssued(t, time.Hour, "ttl = \"30s\"\n")
	i.StartReady()
	i.awaitAnother(nil)
	i.gate.set("closed")
	first, err := i.expiry()
	if err != nil {
		t.Fatal(err)
	}
	reported := false
	parts.RepeatFor(time.Until(first.Add(-ttl/5)), 200*time.Millisecond, func() {
		until, err := i.expiry()
		if err != nil || time.Now().After(until) {
			t.Fatalf("while istiod is away: certificate until %v: %v", until, err)
		}
		reported = reported || i.condition("certificate-not-renewed",
			"the current one expires in less than 2 minutes")
	})
	if !reported {
		t.Error("the failed renewal was not reported")
	}
	i.gate.set("open")
	rig.Eventually(t, time.Minute, "it is renewed", func() bool {
		until, err := i.expiry()
		if err == nil && time.Now().After(until) {
			t.Fatal("the certificate expired though istiod is back")
		}
		return err == nil && until.After(first)
	})
	rig.Eventually(t, time.Minute, "the condition ends",
		func() bool { return !i.condition("certificate-not-renewed", "") })
	failures := metric(t, i.Rig,
		`outrider_secret_failures_total{reason="unreachable",resource="default"}`)
	if failures < 2 {
		t.Errorf("%d failures are counted", failures)
	}
}

// An agent is killed during a renewal. The next one adopts the epoch and renews the certificate.
func TestIstiod_AgentKilledDuringARenewal(t *testing.T) {
	t.Parallel()
	i := newIssued(t, time.Hour, "ttl = \"30s\"\n")
	i.StartReady()
	first := i.awaitAnother(nil)
	i.gate.set("hanging")
	rig.Eventually(t, time.Minute, "a renewal is in progress", i.gate.hangs)
	i.KillAgent()
	if now, err := i.presented(); err != nil || !bytes.Equal(now, first) {
		t.Errorf("Envoy without an agent: %v", err)
	}
	i.gate.set("open")
	i.Start()
	i.awaitAnother(first)
	if epochs, err := i.Epochs(); err != nil || len(epochs) != 1 {
		t.Errorf("epochs: %v, %v", epochs, err)
	}
}

// The root of istiod's CA is rotated twice, by Istio's procedure; the agent's root_ca_file is never
// replaced. Until the old root is removed, Envoy trusts both roots. Envoy always has a certificate.
func TestIstiod_RootRotatedTwice(t *testing.T) {
	t.Parallel()
	i := newIssued(t, time.Hour, "ttl = \"10s\"\n")
	i.StartReady()
	i.awaitAnother(nil)
	await := func(what string, client, server *pkitest.Authority) {
		t.Helper()
		rig.Eventually(t, time.Minute, what, func() bool {
			_, err := i.presentedTo(client, server)
			return err == nil
		})
	}
	for _, name := range []string{"second", "third"} {
		old, next := i.root, pkitest.NewAuthority(t, name, nil)
		i.signer.ReplaceAuthority(t, old, next)
		await(name+" root is trusted", next, old)
		i.signer.ReplaceAuthority(t, next, old)
		await("certificate of the "+name+" root", next, next)
		if _, err := i.presentedTo(old, next); err != nil {
			t.Errorf("the root before the %s is not trusted: %v", name, err)
		}
		i.signer.ReplaceAuthority(t, next)
		rig.Eventually(t, time.Minute, "the root before the "+name+" is gone", func() bool {
			_, err := i.presentedTo(old, next)
			return err != nil
		})
		if _, err := i.presentedTo(next, next); err != nil {
			t.Error(err)
		}
		i.root = next
	}
	last, err := i.presented()
	if err != nil {
		t.Fatal(err)
	}
	i.awaitAnother(last) // only roots that istiod has sent verify istiod's certificate now
}

// If prov_cert_dir is the output_dir, the agent renews its certificate with the current
// certificate. It needs the token only for the first one.
func TestIstiod_RenewsWithItsOwnCertificate(t *testing.T) {
	t.Parallel()
	i := newIssued(t, time.Hour, "")
	i.set(fmt.Sprintf("prov_cert_dir = %q\nttl = \"10s\"\n", i.path("output")))
	i.StartReady()
	chain := i.awaitAnother(nil)
	i.WriteFile("token", i.signer.Token(t, -time.Minute))
	for range 2 {
		chain = i.awaitAnother(chain)
	}
	if i.condition("certificate-not-renewed", "") {
		t.Error("the expired token is reported although nothing needs it")
	}
}

// Without ca_address, istiod is both CA and discovery server. After a rotation of its root, the
// agent reaches both services with the roots that istiod has sent, although root_ca_file is
// outdated.
func TestIstiod_ControlPlaneIsTheAuthority(t *testing.T) {
	t.Parallel()
	i := newIssued(t, time.Hour, "")
	i.SetTOML(fmt.Sprintf(`[node]
service_account = "web"
[envoy]
bootstrap_override = %q
[discovery]
address = %q
[identity]
provider = "istiod"
root_ca_file = %q
token_file = %q
ttl = "10s"
`, i.path("override.yaml"), i.gate.address, i.path("root.pem"), i.path("token")))
	i.StartReady()
	connection := func(want string) {
		t.Helper()
		rig.Eventually(t, time.Minute, "istiod is "+want, func() bool {
			var status api.Status
			i.RunOutriderJSON(&status, "status", "--json")
			return status.Discovery.State == want
		})
	}
	connection("connected")
	i.awaitAnother(nil)
	old, next := i.root, pkitest.NewAuthority(t, "next", nil)
	i.signer.ReplaceAuthority(t, old, next)
	rig.Eventually(t, time.Minute, "both roots are trusted", func() bool {
		_, err := i.presentedTo(next, old)
		return err == nil
	})
	i.signer.ReplaceAuthority(t, next)
	rig.Eventually(t, time.Minute, "the old root is gone", func() bool {
		_, oldErr := i.presentedTo(old, next)
		_, nextErr := i.presentedTo(next, next)
		return oldErr != nil && nextErr == nil
	})
	i.gate.set("closed")
	connection("connecting")
	i.gate.set("open")
	connection("connected")
}

// With restart_on_change, a certificate that the agent writes to output_dir starts an epoch.
func TestIstiod_RestartOnChange(t *testing.T) {
	t.Parallel()
	i := newIssued(t, time.Hour, "restart_on_change = true\n")
	// Envoy is live only after the agent has written the first certificate to output_dir
	i.StartReady()
	first, before := i.awaitAnother(nil), i.LiveEpoch()
	i.set("restart_on_change = true\nttl = \"1h\"\n")
	i.awaitAnother(first)
	rig.Eventually(t, time.Minute, "a new epoch is live", func() bool {
		epochs, err := i.Epochs()
		return err == nil && len(epochs) > 0 && epochs[len(epochs)-1].Number > before.Number &&
			epochs[len(epochs)-1].State == api.EpochLive
	})
}
