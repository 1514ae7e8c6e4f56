package discovery_test

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/agent/jwks"
)

// keySetMesh has a gateway on port %[1]d that verifies tokens with the keys at %[2]s, and forwards
// requests to port %[3]d.
const keySetMesh = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec: {selector: {app: edge}, servers: [{port: {number: %[1]d, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge}
spec: {hosts: ["*"], gateways: [edge], http: [{route: [{destination: {host: a.test}}]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a}
spec: {hosts: [a.test], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: edge}
spec: {jwtRules: [{issuer: https://a.test, jwksUri: "%[2]s", timeout: 1s}]}
`

// namedIssuer is a ServiceEntry for the issuer's address. Without it, the server refuses to fetch
// keys from that local address.
const namedIssuer = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: issuer}
spec: {hosts: [issuer.test], addresses: [127.0.0.1], resolution: STATIC, ports: [{number: 443, name: tls, protocol: TLS}], endpoints: [{address: 127.0.0.1}]}
`

// tokenLoad repeats requests with a token, and records unexpected statuses.
type tokenLoad struct {
	phase atomic.Pointer[map[string]bool] // statuses that are expected now
	seen  atomic.Pointer[string]          // status of the newest response
	wrong sync.Map
	count atomic.Int64
}

func startLoad(t *testing.T, port int, token string, right ...string) *tokenLoad {
	l := &tokenLoad{}
	l.expect(right...)
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			allowed := *l.phase.Load()
			got, _, _ := strings.Cut(askWith(port, "/", http.Header{
				"Authorization": {"Bearer " + token}}), " ")
			if !allowed[got] && !(*l.phase.Load())[got] {
				l.wrong.Store(got, true)
			}
			l.seen.Store(&got)
			l.count.Add(1)
		}
	})
	t.Cleanup(func() {
		close(stop)
		running.Wait()
		l.wrong.Range(func(status, _ any) bool { t.Errorf("wrong answer: %v", status); return true })
		t.Logf("%d requests", l.count.Load())
	})
	return l
}

func (l *tokenLoad) expect(statuses ...string) {
	all := map[string]bool{}
	for _, s := range statuses {
		all[s] = true
	}
	l.phase.Store(&all)
}

// until waits until the newest response has a status. From then on, only this status is expected.
func (l *tokenLoad) until(t *testing.T, status string) {
	t.Helper()
	l.expect("200", "401")
	eventually(t, "status "+status, func() (bool, string) {
		seen := l.seen.Load()
		return seen != nil && *seen == status, fmt.Sprint(seen)
	})
	l.expect(status)
}

// TestKeySets_RotateUnderLoad changes the keys of an issuer under load, stops the issuer's server,
// and starts another discovery server, which uses the stored keys. A token is valid from the first
// to the last fetched key set that contains its key.
func TestKeySets_RotateUnderLoad(t *testing.T) {
	var answer atomic.Value
	first, second := newTokenKey(t, "1", "RS256"), newTokenKey(t, "2", "ES256")
	answer.Store(keySet(first))
	issuer := httptest.NewTLSServer(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, answer.Load().(string))
		}))
	defer issuer.Close()
	folder, state := t.TempDir(), t.TempDir()
	file, roots := filepath.Join(folder, "mesh.yaml"), filepath.Join(state, "roots.pem")
	write(t, roots, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: issuer.Certificate().Raw})))
	port := freePorts(t, 1)[0]
	objects := fmt.Sprintf(keySetMesh, port, issuer.URL, tokenBackend(t, "a"))
	write(t, file, objects)
	board := condition.NewRegistry()
	options := discovery.Options{Files: []string{folder}, Namespace: "shop", SystemRoots: roots,
		KeySetCacheFile: filepath.Join(state,
			"key-sets"), KeySetRefresh: 20 * time.Millisecond, Conditions: board}
	server, changes := start(t, options)
	e := startEnvoy(t, "router", server)
	e.listens(t)
	problem := func() string {
		for _, c := range board.Conditions() {
			if c.Code == jwks.ConditionUnavailable {
				return string(c.Severity) + " " + c.Sentence
			}
		}
		return ""
	}
	reports := func(part string) {
		t.Helper()
		eventually(t, "a condition with "+part, func() (bool, string) {
			return strings.Contains(problem(), part), problem()
		})
	}
	claims := map[string]any{"iss": "https://a.test"}
	eventually(t, "the gateway serves", func() (bool, string) {
		got := askWith(port, "/", nil)
		return got == "200 a", got
	})

	// Without the ServiceEntry, the server does not fetch keys from the issuer's local address, so
	// both tokens are refused.
	former, later := startLoad(t, port, first.sign(t, claims), "401"),
		startLoad(t, port, second.sign(t, claims), "401")
	reports("error cannot fetch the key set of " + issuer.URL + ": ")
	reports("127.0.0.1 is a local address; all tokens that need it are refused")
	write(t, file, objects+namedIssuer)
	changes <- []string{file}
	former.until(t, "200")
	answer.Store(keySet(first, second))
	later.until(t, "200")
	if found, _ := compared(t, server, node("router", "shop", map[string]any{"app": "edge"}),
		folder); len(found) > 0 {
		t.Errorf("the same files would change %v", found)
	}
	// failed fetches, and an equal key set in another order, do not make the tokens invalid
	for range 3 {
		answer.Store(keySet(second, first))
		answer.Store("none")
		reports("warning cannot fetch the key set of " + issuer.URL + ": the key set is not a " +
			"JSON object")
		answer.Store(keySet(first, second))
		eventually(t, "no condition", func() (bool, string) { return problem() == "", problem() })
	}
	answer.Store(keySet(second))
	former.until(t, "401")
	issuer.Close()
	reports("remain in use")
	eventually(t, "the keys are stored", func() (bool, string) {
		text, err := os.ReadFile(options.KeySetCacheFile)
		return err == nil && strings.Contains(string(text), `"kid\":\"2\"`) &&
			!strings.Contains(string(text), `"kid\":\"1\"`), string(text)
	})

	// The next server has the stored keys, although it cannot reach the issuer.
	folder, port = t.TempDir(), freePorts(t, 1)[0]
	write(t, filepath.Join(folder, "mesh.yaml"), fmt.Sprintf(keySetMesh, port, issuer.URL,
		tokenBackend(t, "b"))+namedIssuer)
	again, _ := start(t, discovery.Options{Files: []string{folder}, Namespace: "shop",
		SystemRoots: roots, KeySetCacheFile: copyOf(t, options.KeySetCacheFile)})
	startEnvoy(t, "router", again)
	for token, want := range map[string]string{second.sign(t, claims): "200 b",
		first.sign(t, claims): "401"} {
		eventually(t, want, func() (bool, string) {
			got := askWith(port, "/", http.Header{"Authorization": {"Bearer " + token}})
			return strings.HasPrefix(got, want), got
		})
	}
}

// copyOf copies a file once it exists.
func copyOf(t *testing.T, path string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), filepath.Base(path))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(text))
	return to
}
