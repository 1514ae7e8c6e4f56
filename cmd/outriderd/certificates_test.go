package main_test

import (
	"encoding/pem"
	"fmt"
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

// TestAuthorities_LateFilesNeedNoEpoch: a DestinationRule names a file with CA certificates that
// does not exist. The file takes effect when it is written or replaced, without a new epoch.
func TestAuthorities_LateFilesNeedNoEpoch(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	authority := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: server.Certificate().Raw}))
	r := rig.New(t, rig.Options{Race: true})
	port, roots := parts.FreePort(t), filepath.Join(r.Dir, "tls", "roots.pem")
	r.WriteFile("mesh.d/far.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far}
spec:
  hosts: [far.test]
  resolution: STATIC
  ports: [{number: %d, name: p, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {p: %s}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: far}
spec:
  host: far.test
  trafficPolicy:
    connectionPool: {http: {maxRequestsPerConnection: 1}}
    tls: {mode: SIMPLE, caCertificates: %s, subjectAltNames: [example.com]}
`, port, server.URL[strings.LastIndexByte(server.URL, ':')+1:], roots))
	r.StartReady()
	told := func(want bool) {
		t.Helper()
		rig.Eventually(t, time.Minute, fmt.Sprintf("a condition that names the file stands: %v",
			want), func() bool {
			return strings.Contains(strings.Join(conditions(t, r), "\n"), roots) == want
		})
	}
	answers := func(want int) {
		t.Helper()
		rig.Eventually(t, time.Minute, fmt.Sprintf("far.test answers %d", want), func() bool {
			code, _, err := r.GetHostThroughEnvoy("far.test", port, "/")
			return err == nil && code == want
		})
	}
	inPlace := func(text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(roots), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(roots, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	told(true)
	for range 2 {
		inPlace(authority)
		answers(http.StatusOK)
		told(false)
		inPlace("nothing")
		told(true)
		answers(http.StatusOK) // the CA in the last valid file is still trusted
	}
	if epoch := current(t, r); epoch.Number != 0 {
		t.Errorf("epoch %d lives, of %s", epoch.Number, epoch.Reason)
	}
}
