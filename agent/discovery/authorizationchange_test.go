package discovery_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"outrider.org/outrider/agent/discovery"
	"outrider.org/outrider/scripts/parts"
)

// changingPolicy is a policy that denies one path.
const changingPolicy = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: changing, namespace: shop}
spec: {action: DENY, rules: [{to: [{operation: {paths: [/denied-%d]}}]}]}
`

// TestAuthorizationPolicy_ChangesLoseNoRequest changes a policy while clients send requests to
// other paths over persistent connections. No request is lost, and each version of the policy takes
// effect.
func TestAuthorizationPolicy_ChangesLoseNoRequest(t *testing.T) {
	directory, port := t.TempDir(), parts.FreePort(t)
	write(t, filepath.Join(directory, "gateway.yaml"), fmt.Sprintf(answering, "edge", port))
	server, changes := start(t, discovery.Options{Files: []string{directory}, Namespace: "shop"})
	startEnvoy(t, "router", server)
	// io.NopCloser hides that the body can be read again: net/http would otherwise retry a lost
	// request, and the test would not notice the loss
	post := func(client *http.Client, path string) (int, error) {
		response, err := client.Post(fmt.Sprintf("http://127.0.0.1:%d%s", port, path), "text/plain",
			io.NopCloser(strings.NewReader("body")))
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	answers := func(what, path string, want int) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		eventually(t, what, func() (bool, string) {
			got, err := post(client, path)
			return got == want, fmt.Sprint(got, err)
		})
	}
	answers("requests are answered", "/", http.StatusOK)
	var made, wrong atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				made.Add(1)
				if status, err := post(client, "/"); err != nil || status != http.StatusOK {
					wrong.Add(1)
					t.Errorf("a request that no policy concerns: %d, %v", status, err)
				}
			}
		})
	}
	policy := filepath.Join(directory, "policy.yaml")
	for i := range 10 {
		write(t, policy, fmt.Sprintf(changingPolicy, i))
		changes <- []string{policy}
		answers("the policy is in force", fmt.Sprintf("/denied-%d", i), http.StatusForbidden)
	}
	close(stop)
	clients.Wait()
	t.Logf("%d of %d requests were lost", wrong.Load(), made.Load())
}
