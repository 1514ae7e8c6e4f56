package main_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// guardedEdge is a gateway that verifies JSON Web Tokens with the key set at a URL.
const guardedEdge = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec: {servers: [{port: {number: %d, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: default}
spec: {hosts: ["*"], gateways: [edge], http: [{directResponse: {status: 200}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: issuer, namespace: default}
spec: {hosts: [issuer.test], addresses: [127.0.0.1], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: edge, namespace: default}
spec: {jwtRules: [{issuer: a, jwksUri: "%s"}]}
`

// hashed returns a JSON Web Token that is signed with a symmetric key.
func hashed(key, payload string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(payload))
	sum := hmac.New(sha256.New, []byte(key))
	_, _ = io.WriteString(sum, text)
	return text + "." + base64.RawURLEncoding.EncodeToString(sum.Sum(nil))
}

// TestKeySets_OutliveAgent kills the agent, stops the issuer of the key set, and starts another
// agent and Envoy. Envoy verifies tokens with the key set that the agent has stored.
func TestKeySets_OutliveAgent(t *testing.T) {
	t.Parallel()
	const key = "a key that is as long as a hash!"
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"keys":[{"kty":"oct","alg":"HS256","k":%q}]}`,
			base64.RawURLEncoding.EncodeToString([]byte(key)))
	}))
	defer issuer.Close()
	port := parts.FreePort(t)
	r := rig.New(t, rig.Options{Race: true, TOML: "[node]\ntype = \"router\"\n",
		Mesh: map[string]string{"edge.yaml": fmt.Sprintf(guardedEdge, port, issuer.URL)}})
	status := func(token string) int {
		request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Close = true
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	valid, invalid := hashed(key, `{"iss":"a"}`), hashed("another", `{"iss":"a"}`)
	r.StartReady()
	rig.Eventually(t, time.Minute, "the key set is in use", func() bool {
		return status(valid) == http.StatusOK
	})
	if got := status(invalid); got != http.StatusUnauthorized {
		t.Errorf("a token of another key: %d", got)
	}
	file := filepath.Join(r.Dir, "state", "mesh-key-sets")
	rig.Eventually(t, time.Minute, "the key set is stored", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Mode() == 0o600
	})
	r.KillAgent()
	issuer.Close()
	if got := status(valid); got != http.StatusOK {
		t.Errorf("without the agent: %d", got)
	}
	r.StartReady()
	r.SetTOML("[node]\ntype = \"router\"\n[envoy]\nconcurrency = 2\n")
	if told := r.RunOutrider("reload"); told.ExitCode != 0 {
		t.Fatalf("reload: %s%s", told.Stdout, told.Stderr)
	}
	rig.Eventually(t, time.Minute, "the failure is reported", func() bool {
		return strings.Contains(r.RunOutrider("status").Stdout, "remain in use")
	})
	if got := status(valid); got != http.StatusOK {
		t.Errorf("from the disk: %d", got)
	}
	if got := status(invalid); got != http.StatusUnauthorized {
		t.Errorf("a token of another key, from the disk: %d", got)
	}
}
