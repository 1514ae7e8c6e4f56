package main_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/identity/pkitest"
	"outrider.org/outrider/scripts/rig"
)

// TestCertificates_OfFilesAreWatched: Envoy reads the certificate of a Gateway from a file. The
// agent raises a condition if the certificate has expired or expires soon, but remains ready. It
// logs the replacement of the certificate.
func TestCertificates_OfFilesAreWatched(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	authority := pkitest.NewAuthority(t, "root", nil)
	name := "file-cert:" + g.crt + "~" + g.key
	// install writes a certificate that expires after until, or has expired if until is negative.
	// Its validity began 24 hours before its expiry.
	install := func(until time.Duration) time.Time {
		template := pkitest.LeafTemplate("web", until)
		template.NotBefore = template.NotAfter.Add(-24 * time.Hour)
		chain, key := authority.Issue(t, template)
		g.write(t, g.crt, string(chain))
		g.write(t, g.key, string(key))
		return template.NotAfter
	}
	place := filepath.Join(g.Dir, "mesh.d", "edge.yaml") + ":1 Gateway default/edge"
	identity := func() (api.Identity, api.Status) {
		var status api.Status
		g.RunOutriderJSON(&status, "status")
		for _, i := range status.Identities {
			if i.Name == name {
				return i, status
			}
		}
		return api.Identity{}, status
	}
	// shown waits until the status shows the certificate with this expiry, and the condition with
	// code and sentence as the only one ("": no condition).
	shown := func(until time.Time, code, sentence string) {
		t.Helper()
		rig.Eventually(t, time.Minute, "a certificate until "+until.String()+", "+code, func() bool {
			i, status := identity()
			all := ""
			for _, c := range status.Conditions {
				all += c.Code + " " + c.Sentence
			}
			want := ""
			if code != "" {
				want = code + " " + g.crt + " (" + place + "): " + sentence
			}
			return i.NotAfter.Equal(until.UTC().Truncate(time.Second)) &&
				(want == "" && all == "" || want != "" && strings.HasPrefix(all, want))
		})
		if ready, why := g.Ready(); !ready {
			t.Errorf("not ready: %s", why)
		}
	}

	expired := install(-time.Hour)
	g.WriteFile("mesh.d/edge.yaml", g.definition)
	daemon := g.StartReady()
	shown(expired, "certificate-expired", "expired on ")
	i, _ := identity()
	if i.File != g.crt || len(i.PresentedBy) != 1 || i.PresentedBy[0] != place ||
		len(i.Names) != 1 || i.Names[0] != "web.test" || i.Issuer != "O=root" {
		t.Errorf("shown as %+v", i)
	}
	for command, want := range map[string]string{
		"certs": "EXPIRED", "proxy secrets": " EXPIRED", "status": "EXPIRED on ",
		"status --html": g.crt,
	} {
		got := g.RunOutrider(strings.Fields(command)...)
		if got.ExitCode != 0 || !strings.Contains(got.Stdout, want) {
			t.Errorf("outrider %s: exit %d: %s%s", command, got.ExitCode, got.Stdout, got.Stderr)
		}
	}
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", g.Ports.Status))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	metric := fmt.Sprintf("outrider_secret_expiry_timestamp_seconds{resource=%q,source=\"files\"} ", name)
	if err != nil || !strings.Contains(string(text), metric) {
		t.Errorf("no %s in the metrics (%v)", metric, err)
	}

	soon := install(2 * time.Hour)
	shown(soon, "certificate-not-renewed", "the file has not been replaced and expires in 1")
	fresh := install(20 * time.Hour)
	shown(fresh, "", "")
	want := fmt.Sprintf("%q:%q", "not_after",
		fresh.UTC().Truncate(time.Second).Format(time.RFC3339))
	if log := daemon.Output(); strings.Count(log, "certificate replaced") != 2 ||
		!strings.Contains(log, want) {
		t.Errorf("not two replacements, or no %s, in the log:\n%s", want, log)
	}
	_, other := authority.Issue(t, pkitest.LeafTemplate("web", time.Hour))
	g.write(t, g.key, string(other))
	mismatch := g.key + ": the private key is not that of the certificate in " + g.crt +
		"; replace both files"
	rig.Eventually(t, time.Minute, "mesh check names the files of a pair that does not match",
		func() bool { return strings.Contains(g.RunOutrider("mesh", "check").Stderr, mismatch) })
	if i, _ := identity(); !i.NotAfter.Equal(fresh.UTC().Truncate(time.Second)) {
		t.Errorf("Envoy keeps its pair, and shown is %+v", i)
	}
	g.WriteFile("mesh.d/edge.yaml", "")
	rig.Eventually(t, time.Minute, "the certificate is not shown any more", func() bool {
		i, _ := identity()
		return i.Name == ""
	})
}
