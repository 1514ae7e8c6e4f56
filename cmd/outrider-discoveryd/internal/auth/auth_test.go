package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"outrider.org/outrider/agent/xds"
)

const web = "spiffe://cluster.local/ns/a/sa/web"

// issuer is an issuer of tokens with its private key.
type issuer struct {
	t   *testing.T
	key *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{t, key}
}

// keyFile writes the public key to a file and returns its path.
func (i issuer) keyFile() string {
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public()}}})
	if err != nil {
		i.t.Fatal(err)
	}
	path := filepath.Join(i.t.TempDir(), "keys.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		i.t.Fatal(err)
	}
	return path
}

type claims map[string]any

// token returns a token for service account web, with some claims replaced.
func (i issuer) token(replaced claims) string {
	of := claims{"iss": "https://issuer", "aud": []string{"other", "istio-ca"},
		"sub": "system:serviceaccount:a:web", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range replaced {
		of[name] = value
	}
	text, err := json.Marshal(of)
	if err != nil {
		i.t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.key}, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	signed, err := signer.Sign(text)
	if err != nil {
		i.t.Fatal(err)
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		i.t.Fatal(err)
	}
	return compact
}

// certificate returns a verified certificate with SPIFFE IDs.
func certificate(t *testing.T, ids ...string) *x509.Certificate {
	t.Helper()
	c := &x509.Certificate{NotAfter: time.Now().Add(time.Hour)}
	for _, id := range ids {
		parsed, err := url.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		c.URIs = append(c.URIs, parsed)
	}
	return c
}

// nodeOf returns the node of a client. An empty argument omits the field.
func nodeOf(namespace, account, domain string) *corev3.Node {
	fields := map[string]*structpb.Value{"LABELS": structpb.NewStructValue(&structpb.Struct{})}
	if namespace != "" {
		fields["NAMESPACE"] = structpb.NewStringValue(namespace)
	}
	if account != "" {
		fields["SERVICE_ACCOUNT"] = structpb.NewStringValue(account)
	}
	return &corev3.Node{Id: "sidecar~10.0.0.1~web." + namespace + "~" + domain,
		Metadata: &structpb.Struct{Fields: fields}}
}

func domains() []string { return []string{"cluster.local", "old.local"} }

func TestAdmit_Identities(t *testing.T) {
	ours, other := newIssuer(t), newIssuer(t)
	unreadable := filepath.Join(t.TempDir(), "none")
	issuers := []Issuer{{"https://issuer", "istio-ca", ours.keyFile()},
		{"https://broken", "istio-ca", unreadable}}
	token := ours.token(nil)
	shown := certificate(t, web)
	expired := certificate(t, web)
	expired.NotAfter = time.Now().Add(-time.Second)
	good := nodeOf("a", "web", "a.svc.cluster.local")
	tls := func(c *x509.Certificate, token string) xds.Peer {
		return xds.Peer{TLS: true, Certificate: c, Token: token}
	}
	for _, test := range []struct {
		name    string
		require string
		client  xds.Peer
		node    *corev3.Node
		id      string // SPIFFE ID of the client; "": none
		code    codes.Code
		says    string
	}{
		{"certificate", RequireAny, tls(shown, ""), good, web, codes.OK, ""},
		{"certificate for mtls", RequireMTLS, tls(shown, ""), good, web, codes.OK, ""},
		{"alias of the trust domain", RequireAny, tls(certificate(t, "spiffe://old.local/ns/a/sa/web"), ""),
			good, "spiffe://old.local/ns/a/sa/web", codes.OK, ""},
		{"token", RequireAny, tls(nil, token), good, web, codes.OK, ""},
		{"token for token", RequireToken, tls(shown, token), good, web, codes.OK, ""},
		{"unusable certificate, token", RequireAny, tls(certificate(t), token), good, web, codes.OK, ""},
		{"certificate although not needed", RequireNone, tls(shown, ""), good, web, codes.OK, ""},
		{"no service account", RequireAny, tls(shown, ""), nodeOf("a", "", ""), web, codes.OK, ""},

		{"nothing", RequireAny, tls(nil, ""), good, "", codes.Unauthenticated, "client_ca_file, or a token"},
		{"nothing for mtls", RequireMTLS, tls(nil, token), good, "", codes.Unauthenticated,
			"present a certificate"},
		{"nothing for token", RequireToken, tls(shown, ""), good, "", codes.Unauthenticated,
			"present a token"},
		{"nothing needed", RequireNone, tls(nil, ""), nodeOf("b", "x", ""), "", codes.OK, ""},
		{"without TLS", RequireMTLS, xds.Peer{Token: token}, nodeOf("b", "x", ""), "", codes.OK, ""},

		{"another namespace", RequireAny, tls(shown, ""), nodeOf("b", "web", ""), "",
			codes.PermissionDenied, `namespace "b" is not the namespace of ` + web},
		{"another namespace in the domain", RequireAny, tls(shown, ""),
			nodeOf("", "", "b.svc.cluster.local"), "", codes.PermissionDenied, `namespace "b"`},
		{"another service account", RequireAny, tls(nil, token), nodeOf("a", "x", ""), "",
			codes.PermissionDenied, `account "x"`},
		{"another trust domain", RequireAny, tls(certificate(t, "spiffe://x/ns/a/sa/web"), ""), good, "",
			codes.Unauthenticated, "not of trust domain cluster.local or old.local"},
		{"expired certificate", RequireAny, tls(expired, ""), good, "", codes.Unauthenticated, "expired"},
		{"two SPIFFE IDs", RequireAny, tls(certificate(t, web, web), ""), good, "",
			codes.Unauthenticated, "2 URIs"},
		{"other SPIFFE ID", RequireAny, tls(certificate(t, "spiffe://cluster.local/web"), ""), good, "",
			codes.Unauthenticated, "is not spiffe://"},
		{"SPIFFE ID with a query", RequireAny, tls(certificate(t, web+"?x"), ""), good, "",
			codes.Unauthenticated, "is not spiffe://"},

		{"another key", RequireAny, tls(nil, other.token(nil)), good, "", codes.Unauthenticated,
			"verification fails"},
		{"another key although not needed", RequireNone, tls(nil, other.token(nil)), good, "",
			codes.Unauthenticated, "verification fails"},
		{"another issuer", RequireAny, tls(nil, ours.token(claims{"iss": "x"})), good, "",
			codes.Unauthenticated, `no issuer "x"`},
		{"another audience", RequireAny, tls(nil, ours.token(claims{"aud": "x"})), good, "",
			codes.Unauthenticated, "audience"},
		{"expired token", RequireAny, tls(nil, ours.token(claims{"exp": time.Now().Unix()})), good, "",
			codes.Unauthenticated, "expired"},
		{"no expiry", RequireAny, tls(nil, ours.token(claims{"exp": nil})), good, "",
			codes.Unauthenticated, "no expiry"},
		{"not valid yet", RequireAny, tls(nil, ours.token(claims{"nbf": time.Now().Unix() + 3600})), good,
			"", codes.Unauthenticated, "not valid yet"},
		{"no service account's", RequireAny, tls(nil, ours.token(claims{"sub": "web"})), good, "",
			codes.Unauthenticated, `subject "web"`},
		{"malformed account", RequireAny, tls(nil, ours.token(claims{"sub": "system:serviceaccount:a:"})),
			good, "", codes.Unauthenticated, "invalid namespace or account name"},
		{"no JWT", RequireAny, tls(nil, "secret"), good, "", codes.Unauthenticated, "Header.Payload"},
		{"no keys", RequireAny, tls(nil, ours.token(claims{"iss": "https://broken"})), good, "",
			codes.Unavailable, "cannot be verified now"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := New(Settings{Require: test.require, Issuers: issuers}, domains,
				slog.New(slog.DiscardHandler))
			client := test.client
			node, err := a.Admit(&client, test.node)
			if status.Code(err) != test.code || err != nil && !strings.Contains(err.Error(),
				test.says) {
				t.Fatalf("%v, want %v %q", err, test.code, test.says)
			}
			if refused := a.RefusedClients(); refused > 0 != (err != nil) {
				t.Errorf("%d refused", refused)
			}
			if err != nil {
				if strings.Contains(err.Error(), unreadable) {
					t.Errorf("the client learns a path: %v", err)
				}
				return
			}
			if client.Identity != test.id || a.MayReceiveSecrets(client) != (test.id != "") {
				t.Errorf("identity %q, secrets %v", client.Identity, a.MayReceiveSecrets(client))
			}
			if got := node.Metadata.Fields["NAMESPACE"].GetStringValue(); test.id != "" && got != "a" {
				t.Errorf("namespace %q", got)
			}
		})
	}
}

// TestAdmit_AddsNamespace: the namespace of the identity is added to a copy of the client's node.
func TestAdmit_AddsNamespace(t *testing.T) {
	a := New(Settings{Require: RequireAny}, domains, slog.New(slog.DiscardHandler))
	for _, node := range []*corev3.Node{nodeOf("", "", ""), {Id: "x"}} {
		client := xds.Peer{TLS: true, Certificate: certificate(t, web)}
		before := len(node.GetMetadata().GetFields())
		got, err := a.Admit(&client, node)
		if err != nil {
			t.Fatal(err)
		}
		if got.Metadata.Fields["NAMESPACE"].GetStringValue() != "a" ||
			len(got.Metadata.Fields) != before+1 || len(node.GetMetadata().GetFields()) != before {
			t.Errorf("%v from %v", got, node)
		}
	}
}

func TestMayDebug(t *testing.T) {
	a := New(Settings{DebugIdentities: []string{web}}, domains, slog.New(slog.DiscardHandler))
	for id, code := range map[string]codes.Code{"": codes.Unauthenticated, web: codes.OK,
		web + "2": codes.PermissionDenied} {
		if err := a.AuthorizeDebug(xds.Peer{Identity: id}); status.Code(err) != code {
			t.Errorf("%q: %v", id, err)
		}
	}
	a.Configure(Settings{})
	if err := a.AuthorizeDebug(xds.Peer{Identity: web}); err == nil {
		t.Error("allowed after the change")
	}
}

// AuthorizeDebugPage accepts a certificate that is valid now, even if Settings.Require demands a
// token.
func TestMayView(t *testing.T) {
	a := New(Settings{Require: RequireToken, DebugIdentities: []string{web}}, domains,
		slog.New(slog.DiscardHandler))
	expired := certificate(t, web)
	expired.NotAfter = time.Now().Add(-time.Minute)
	for name, c := range map[string]struct {
		shown *x509.Certificate
		code  codes.Code
	}{
		"listed":     {certificate(t, web), codes.OK},
		"another":    {certificate(t, web+"2"), codes.PermissionDenied},
		"foreign":    {certificate(t, "spiffe://other.local/ns/a/sa/web"), codes.Unauthenticated},
		"without ID": {certificate(t), codes.Unauthenticated},
		"expired":    {expired, codes.Unauthenticated},
	} {
		if err := a.AuthorizeDebugPage(c.shown); status.Code(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var errDown = &unavailable{errors.New("connection refused at api.internal")}
