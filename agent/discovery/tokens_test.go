package discovery_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// tokenKey is a key that signs tokens.
type tokenKey struct {
	id     string
	signer crypto.Signer
}

func newTokenKey(t *testing.T, id, algorithm string) tokenKey {
	t.Helper()
	var signer crypto.Signer
	var err error
	if algorithm == "RS256" {
		signer, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tokenKey{id, signer}
}

func encode64(text []byte) string { return base64.RawURLEncoding.EncodeToString(text) }

// keySet returns a key set (JWKS) with the public keys.
func keySet(keys ...tokenKey) string {
	all := []map[string]string{}
	for _, k := range keys {
		switch public := k.signer.Public().(type) {
		case *rsa.PublicKey:
			all = append(all, map[string]string{"kty": "RSA", "kid": k.id,
				"n": encode64(public.N.Bytes()), "e": encode64(big.NewInt(int64(public.E)).Bytes())})
		case *ecdsa.PublicKey:
			point, _ := public.Bytes() // keys on the curve P-256 can always be encoded
			all = append(all, map[string]string{"kty": "EC", "crv": "P-256", "kid": k.id,
				"x": encode64(point[1:33]), "y": encode64(point[33:])})
		}
	}
	text, _ := json.Marshal(map[string]any{"keys": all}) // texts can always be encoded
	return string(text)
}

// sign returns a token with claims. It is valid for an hour unless the claims say otherwise.
func (k tokenKey) sign(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"exp": time.Now().Add(time.Hour).Unix(), "sub": "alice"}
	for name, value := range claims {
		all[name] = value
	}
	algorithm := "ES256"
	if _, ok := k.signer.(*rsa.PrivateKey); ok {
		algorithm = "RS256"
	}
	header, err := json.Marshal(map[string]string{"alg": algorithm, "kid": k.id})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	text := encode64(header) + "." + encode64(payload)
	sum := sha256.Sum256([]byte(text))
	var signature []byte
	if key, ok := k.signer.(*ecdsa.PrivateKey); ok {
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		signature = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	} else if signature, err = k.signer.Sign(rand.Reader, sum[:], crypto.SHA256); err != nil {
		t.Fatal(err)
	}
	return text + "." + encode64(signature)
}

// tokenMesh has a gateway on port 7601, an ingress listener of a Sidecar on 7602, and
// RequestAuthentications for both. The gateway routes requests with certain claims to backend b.
const tokenMesh = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {app: edge}, servers: [{port: {number: 7601, name: http, protocol: HTTP}, hosts: ["*"]}, {port: {number: 7400, name: step, protocol: TCP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own, namespace: shop}
spec:
  ingress: [{port: {number: 7602, name: http, protocol: HTTP}, bind: 127.0.0.1, captureMode: NONE, defaultEndpoint: "127.0.0.1:%[1]d"}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: backends, namespace: shop}
spec: {hosts: [a.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1, ports: {http: %[1]d}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: other, namespace: shop}
spec: {hosts: [b.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1, ports: {http: %[2]d}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: issuer, namespace: shop}
spec: {hosts: [localhost], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  tcp: [{match: [{port: 7400}], route: [{destination: {host: step.test}}]}]
  http:
  - match:
    - {headers: {"@request.auth.claims.role": {exact: admin}}}
    - {headers: {"@request.auth.claims[org.test][team]": {prefix: red}}}
    - {uri: {prefix: /not}, withoutHeaders: {"@request.auth.claims.groups": {exact: staff}}}
    route: [{destination: {host: b.test}}]
  - route: [{destination: {host: a.test}}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: first, namespace: shop}
spec:
  selector: {matchLabels: {app: edge}}
  jwtRules:
  - issuer: https://first.test
    audiences: [web, app]
    jwks: '%[3]s'
    forwardOriginalToken: true
    outputPayloadToHeader: x-payload
    outputClaimToHeaders: [{header: x-sub, claim: sub}, {header: x-team, claim: org.team}]
    spaceDelimitedClaims: [groups]
  - issuer: https://second.test
    jwksUri: %[4]s
    timeout: 2s
    fromHeaders: [{name: x-token, prefix: "Token "}]
    fromParams: [t]
    fromCookies: [session]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: everywhere, namespace: istio-system}
spec: {jwtRules: [{issuer: https://third.test, jwks: '%[5]s'}, {issuer: https://unknown.test, fromHeaders: [{name: x-unknown}], jwksUri: "http://localhost:1/"}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: for-others, namespace: shop}
spec: {selector: {matchLabels: {app: other}}, jwtRules: [{issuer: https://third.test, jwks: '{"keys":[]}', fromHeaders: [{name: x-other}]}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: for-targets, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]
  jwtRules: [{issuer: https://third.test, jwks: '{"keys":[]}', fromHeaders: [{name: x-other}]}]
---
`

// tokenBackend runs a backend that responds with its name and the headers that Envoy made from
// claims.
func tokenBackend(t *testing.T, name string) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return run(t, &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			answer := name
			for _, header := range []string{"x-sub", "x-team"} {
				if value := r.Header.Get(header); value != "" {
					answer += " " + header + "=" + value
				}
			}
			for _, header := range []string{"authorization", "x-token", "x-payload", "cookie"} {
				if r.Header.Get(header) != "" {
					answer += " " + header
				}
			}
			if r.URL.RawQuery != "" {
				answer += " query"
			}
			_, _ = io.WriteString(w, answer)
		})}, listener)
}

// TestTokens_AnswersAsWithIstiod sends requests with tokens to an Envoy of this server, and to one
// of a real istiod. Both must answer as expected.
func TestTokens_AnswersAsWithIstiod(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	first, second := newTokenKey(t, "1", "RS256"), newTokenKey(t, "2", "ES256")
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, keySet(second))
	}))
	defer issuer.Close()
	objects := fmt.Sprintf(tokenMesh, tokenBackend(t, "a"), tokenBackend(t, "b"), keySet(first),
		strings.Replace(issuer.URL, "127.0.0.1", "localhost", 1), keySet(second)) +
		fmt.Sprintf(stepService, 7400, echoTCP(t, "step"))
	type claims = map[string]any
	of := func(k tokenKey, issuer string, more claims) string {
		all := claims{"iss": issuer}
		for name, value := range more {
			all[name] = value
		}
		return k.sign(t, all)
	}
	const a, b, c = "https://first.test", "https://second.test", "https://third.test"
	web := claims{"aud": "web"}
	bearer := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	later, past := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	atB := of(second, b, nil)
	requests := []struct {
		name    string
		path    string
		header  http.Header
		status  int
		gateway string // expected answer of the gateway
		sidecar string
	}{
		{"no token", "/", nil, 200, "a", "a"},
		{"no token, other path", "/not", nil, 200, "b", "a"},
		{"not a token", "/", bearer("abc"), 401, "", ""},
		{"valid", "/", bearer(of(first, a, web)), 200, "a x-sub=alice authorization x-payload", "="},
		{"audiences", "/", bearer(of(first, a, claims{"aud": []string{"no", "app"}})), 200,
			"a x-sub=alice authorization x-payload", "="},
		{"nested claim", "/", bearer(of(first, a, claims{"aud": "web", "org": claims{"team": "blue"}})),
			200, "a x-sub=alice x-team=blue authorization x-payload", "="},
		{"no audience", "/", bearer(of(first, a, nil)), 403, "", ""},
		{"wrong audience", "/", bearer(of(first, a, claims{"aud": "tv"})), 403, "", ""},
		{"expired", "/", bearer(of(first, a, claims{"aud": "web", "exp": past})), 401, "", ""},
		{"not yet valid", "/", bearer(of(first, a, claims{"aud": "web", "nbf": later})), 401, "", ""},
		{"wrong issuer", "/", bearer(of(first, "https://fourth.test", web)), 401, "", ""},
		{"wrong key", "/", bearer(of(second, a, web)), 401, "", ""},
		{"issuer of another position", "/", bearer(atB), 401, "", ""},
		{"header", "/", http.Header{"X-Token": {"Token " + atB}}, 200, "a", "="},
		{"header without prefix", "/", http.Header{"X-Token": {atB}}, 200, "a x-token", "="},
		{"parameter", "/?t=" + atB, nil, 200, "a", "="},
		{"cookie", "/", http.Header{"Cookie": {"session=" + atB}}, 200, "a cookie", "="},
		{"expired cookie", "/", http.Header{"Cookie": {"session=" + of(second, b, claims{"exp": past})}},
			401, "", ""},
		{"root namespace", "/", bearer(of(second, c, nil)), 200, "a", "="},
		{"two tokens", "/", http.Header{"Authorization": {"Bearer " + of(first, a, web)},
			"X-Token": {"Token " + atB}}, 200, "a x-sub=alice authorization x-token x-payload", "="},
		{"unknown keys", "/", http.Header{"X-Unknown": {of(second, "https://unknown.test", nil)}},
			401, "", ""},
		{"not selected", "/", http.Header{"X-Other": {"abc"}}, 200, "a", "="},
		{"claim", "/", bearer(of(second, c, claims{"role": "admin"})), 200, "b", "a"},
		{"claim in a list", "/", bearer(of(second, c, claims{"role": []string{"user", "admin"}})), 200,
			"b", "a"},
		{"other claim", "/", bearer(of(second, c, claims{"role": "user"})), 200, "a", "a"},
		{"claim in a claim", "/", bearer(of(second, c, claims{"org.test": claims{"team": "reds"}})),
			200, "b", "a"},
		{"spaced claim", "/not", bearer(of(first, a, claims{"aud": "web", "groups": "x staff"})), 200,
			"a x-sub=alice authorization x-payload", "="},
		{"without the claim", "/not", bearer(of(first, a, web)), 200,
			"b x-sub=alice authorization x-payload", "a x-sub=alice authorization x-payload"},
	}
	for _, by := range []string{"outrider", "istiod"} {
		for kind, port := range map[string]int{"router": 7601, "sidecar": 7602} {
			t.Run(by+"/"+kind, func(t *testing.T) {
				proxy := startPeer(t, kind, by, "", newMeshPKI(t))
				proxy.apply(t, objects, "127.0.0.1:7400")
				known := http.Header{"Cookie": {"session=" + atB}}
				eventually(t, "the key set was fetched", func() (bool, string) {
					got := askWith(port, "/", known)
					return got == "200 a cookie", got
				})
				for _, r := range requests {
					want := fmt.Sprintf("%d %s", r.status, r.gateway)
					if kind == "sidecar" && r.sidecar != "=" {
						want = fmt.Sprintf("%d %s", r.status, r.sidecar)
					}
					got := askWith(port, r.path, r.header)
					if r.status != http.StatusOK {
						got = got[:min(len(got), 3)] + " "
					}
					if got != want {
						t.Errorf("%s: %s, want %s", r.name, got, want)
					}
				}
			})
		}
	}
}

// askWith returns the status and body of the answer to a request.
func askWith(port int, path string, header http.Header) string {
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path),
		nil)
	if err != nil {
		return err.Error()
	}
	request.Close = true
	if header != nil {
		request.Header = header.Clone()
	}
	answer, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", answer.StatusCode, body)
}
