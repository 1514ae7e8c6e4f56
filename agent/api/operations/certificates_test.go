package operations

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/identity"
)

func TestCertificateProblems(t *testing.T) {
	secrets := []identity.SecretInfo{
		{Name: "default", Condition: identity.CodeUnavailable, ConditionSentence: "no answer"},
		{Name: "kubernetes://well", Users: []string{"/m/a.yaml:3 Gateway d/a"}},
		{Name: "kubernetes://x", Users: []string{"/m/a.yaml:3 Gateway d/a", "/m/b.yaml:9 Gateway d/b"},
			File: "/c/x/tls.crt", Condition: identity.CodeExpired, ConditionSentence: "expired"},
		{Name: "kubernetes://late", Users: []string{"/m/b.yaml:9 Gateway d/b"},
			Condition: identity.CodeNotRenewed, ConditionSentence: "expires in 2 days"},
		{Name: "kubernetes://named", Users: []string{"/m/b.yaml:9 Gateway d/b"},
			File: "/c/named/tls.crt", Condition: identity.CodeUnavailable, ConditionSentence: "no"},
	}
	known := []discovery.Problem{{Message: "user outrider cannot read /c/named/tls.crt"}}
	want := []discovery.Problem{
		{File: "/m/a.yaml", Line: 3, Object: "Gateway d/a", Severity: condition.Error,
			Message: "credential x: expired"},
		{File: "/m/b.yaml", Line: 9, Object: "Gateway d/b", Severity: condition.Warning,
			Message: "credential late: expires in 2 days"},
	}
	if diff := cmp.Diff(want, certificateProblems(secrets, known)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
