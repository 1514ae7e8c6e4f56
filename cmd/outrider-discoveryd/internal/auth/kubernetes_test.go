package auth

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/scripts/parts/cluster"
)

// TestKubernetes: a real API server reviews the tokens that it has issued.
func TestKubernetes(t *testing.T) {
	c := cluster.Start(t)
	c.Create("/api/v1/namespaces", "metadata: {name: a}")
	c.Create("/api/v1/namespaces/a/serviceaccounts", "metadata: {name: web}")
	url, administrator, nobody := c.APIClients()
	token := c.Token("a", "web")
	by := func(client *http.Client, url string) APIServerClient {
		return func() (*http.Client, string, error) { return client, url, nil }
	}
	unreadable := func() (*http.Client, string, error) { return nil, "", errors.New("no kubeconfig") }
	for _, test := range []struct {
		name   string
		review TokenReviewer
		token  string
		node   string // namespace in the client's node
		code   codes.Code
		says   string
	}{
		{"its own", KubernetesReviewer(by(administrator, url+"/"), "istio-ca"), token, "a", codes.OK, ""},
		{"another namespace", KubernetesReviewer(by(administrator, url), "istio-ca"), token, "b",
			codes.PermissionDenied, "namespace"},
		{"another audience", KubernetesReviewer(by(administrator, url), "other"), token, "a",
			codes.Unauthenticated, "the API server refuses the token"},
		{"another issuer", KubernetesReviewer(by(administrator, url), "istio-ca"), newIssuer(t).token(nil), "a",
			codes.Unauthenticated, "the API server refuses the token"},
		{"no right to review", KubernetesReviewer(by(nobody, url), "istio-ca"), token, "a",
			codes.Unavailable, "cannot be verified now"},
		{"no API server", KubernetesReviewer(by(administrator, "https://127.0.0.1:1"), "istio-ca"), token, "a",
			codes.Unavailable, "cannot be verified now"},
		{"no kubeconfig", KubernetesReviewer(unreadable, "istio-ca"), token, "a",
			codes.Unavailable, "cannot be verified now"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := New(Settings{Require: RequireToken, TokenReviewer: test.review}, domains,
				slog.New(slog.DiscardHandler))
			client := &xds.Peer{TLS: true, Token: test.token}
			_, err := a.Admit(client, nodeOf(test.node, "web", ""))
			if status.Code(err) != test.code || err != nil &&
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %v %q", err, test.code, test.says)
			}
			if err == nil && client.Identity != web {
				t.Errorf("identity %q", client.Identity)
			}
		})
	}
}
