package identity_test

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/identity/pkitest"
)

// Certificates that Envoy presents are checked again as time passes and when they are replaced.
func TestPresented_EndsSoonExpiresAndIsReplaced(t *testing.T) {
	authority := pkitest.NewAuthority(t, "root", nil)
	issue := func(from, until time.Time) []*x509.Certificate {
		template := pkitest.LeafTemplate("web", 0)
		template.NotBefore, template.NotAfter = from, until
		return []*x509.Certificate{authority.Sign(t, template, pkitest.NewKey(t).Public())}
	}
	board := condition.NewRegistry()
	now := time.Now()
	m := identity.New(identity.Options{Conditions: board, Now: func() time.Time { return now }})
	const name = "file-cert:/tls/www.crt~/tls/www.key"
	users := map[string][]string{name: {"/mesh.d/www.yaml:3 Gateway default/www"}}
	present := func(chain []*x509.Certificate) {
		m.SetEnvoyFileCertificates(map[string][]*x509.Certificate{name: chain}, users)
	}
	raised := func() string {
		var all []string
		for _, c := range board.Conditions() {
			all = append(all, fmt.Sprint(c.Code, " ", c.Severity, ": ", c.Sentence))
		}
		return strings.Join(all, "\n")
	}
	day := 24 * time.Hour
	first := issue(now, now.Add(90*day))
	const label = "/tls/www.crt (/mesh.d/www.yaml:3 Gateway default/www)"
	for _, step := range []struct {
		at   time.Duration
		want string
	}{
		{0, ""}, {80 * day, ""},
		{81*day + time.Hour, "certificate-not-renewed warning: " + label +
			": the file has not been replaced and expires in 8 days"},
		{90*day + time.Hour, "certificate-expired error: " + label + ": expired on " +
			now.Add(90*day).UTC().Format(time.DateTime) + " UTC; replace the file"},
	} {
		now = first[0].NotBefore.Add(step.at)
		present(first)
		if diff := cmp.Diff(step.want, raised()); diff != "" {
			t.Errorf("after %v:\n%s", step.at, diff)
		}
	}
	shown := m.Secrets()
	if len(shown) != 1 || shown[0].File != "/tls/www.crt" || shown[0].Source != "files" ||
		!cmp.Equal(shown[0].Names, []string{"web.test"}) || !cmp.Equal(shown[0].Users, users[name]) {
		t.Errorf("shown: %+v", shown)
	}
	second := issue(now, now.Add(90*day))
	present(second)
	if got := raised(); got != "" {
		t.Errorf("after the replacement: %s", got)
	}
	rotated := slices.ContainsFunc(board.Events(0), func(e condition.Event) bool {
		return e.Kind == condition.KindSecretRotated && e.Fields["resource"] == name &&
			e.Fields["not_after"] == second[0].NotAfter.UTC().Format(time.RFC3339)
	})
	if !rotated {
		t.Error("the replacement is no event")
	}
	if got := m.Stats().Renewals[name]; got != 1 {
		t.Errorf("%d renewals", got)
	}
	m.SetEnvoyFileCertificates(nil, nil)
	if len(m.Secrets())+len(m.Stats().Renewals) != 0 {
		t.Errorf("what is not presented any more is shown: %v", m.Secrets())
	}
}

func TestEndsSoon(t *testing.T) {
	day := 24 * time.Hour
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	// soon is the remaining lifetime from which a certificate ends soon.
	for lifetime, soon := range map[time.Duration]time.Duration{
		90 * day: 9 * day, 6 * day: 14*time.Hour + 24*time.Minute, 365 * day: 14 * day,
		3650 * day: 14 * day, time.Hour: 6 * time.Minute,
	} {
		until := from.Add(lifetime)
		if pki.EndsSoon(from, until, until.Add(-soon)) {
			t.Errorf("%v: too early", lifetime)
		}
		for _, left := range []time.Duration{soon - time.Second, 0, -day} {
			if !pki.EndsSoon(from, until, until.Add(-left)) {
				t.Errorf("%v, of which %v is left: not soon", lifetime, left)
			}
		}
	}
}
