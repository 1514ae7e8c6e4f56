package discovery_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/discovery"
)

// TestDenials_OfCapturedPassthrough sends captured requests and connections to a port that no
// object names. Policies of the workload apply to that port, too.
func TestDenials_OfCapturedPassthrough(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	redirect(t)
	listener, err := net.Listen("tcp", net.JoinHostPort(capturedAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, &http.Server{Handler: &backend{name: "unknown"}}, listener)
	address := listener.Addr().String()
	directory := t.TempDir()
	policy := filepath.Join(directory, "policy.yaml")
	invalid := strings.Replace(deniedPolicies["AuthorizationPolicy"], "ALLOW", "ALOW", 1)
	write(t, policy, invalid)
	server, changes := start(t, discovery.Options{Files: []string{directory},
		SeparateViewsByAddress: true})
	startEnvoy(t, "REDIRECT", server)
	request := func(token string) string {
		r, err := http.NewRequest(http.MethodGet, "http://"+address+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(r)
		if err != nil {
			return err.Error()
		}
		_ = response.Body.Close()
		return response.Status[:3]
	}
	connection := func() string { // sends bytes of a protocol other than HTTP
		c, err := net.Dial("tcp", address)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, "\x00\x01\r\n\r\n")
		answer, _ := io.ReadAll(c)
		return fmt.Sprintf("%.12s", answer)
	}
	// beginning of the response of the application's HTTP server to bytes that are not HTTP
	const served = "HTTP/1.1 400"
	for _, step := range []struct{ what, text, request, badToken, connection string }{
		{"a denied workload", invalid, "403", "403", ""},
		{"another workload", strings.Replace(invalid, "app: edge", "app: other", 1), "200", "200", served},
		{"tokens", deniedPolicies["RequestAuthentication"], "200", "401", served},
		{"a broken edit of tokens", strings.Replace(deniedPolicies["RequestAuthentication"], "spec: {",
			"spec: {unknown: true, ", 1), "200", "401", served},
		{"a new file that is no YAML", "kind: AuthorizationPolicy\na: [", "403", "401", ""},
	} {
		if strings.HasPrefix(step.what, "a new file") {
			policy = filepath.Join(directory, "new.yaml")
		}
		write(t, policy, step.text)
		changes <- []string{policy}
		for what, check := range map[string]struct {
			got  func() string
			want string
		}{
			"a request":                 {func() string { return request("") }, step.request},
			"one with an invalid token": {func() string { return request("x.y.z") }, step.badToken},
			"a connection without HTTP": {connection, step.connection},
		} {
			eventually(t, step.what+": "+what, func() (bool, string) {
				got := check.got()
				return got == check.want, got
			})
		}
	}
}
