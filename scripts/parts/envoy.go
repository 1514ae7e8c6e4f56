package parts

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"testing"
	"time"
)

// EnvoyProcess is a running Envoy whose admin interface is on a Unix socket.
type EnvoyProcess struct {
	*Process
	Admin http.RoundTripper // connects to the admin interface, whatever the host in the URL
}

// StartEnvoy starts a real Envoy, which is killed when the test ends. bootstrap must place the
// admin interface on the Unix socket admin.
func StartEnvoy(t testing.TB, admin, bootstrap string, arguments ...string) *EnvoyProcess {
	t.Helper()
	arguments = append([]string{"--config-yaml", bootstrap, "--disable-hot-restart",
		"--concurrency", "1"}, arguments...)
	return &EnvoyProcess{StartProcess(t, exec.Command(EnvoyPath(t), arguments...)),
		&http.Transport{DisableKeepAlives: true, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", admin)
			}}}
}

// Get requests a path of the admin interface and returns the body of the response, "" unless the
// status is 200.
func (e *EnvoyProcess) Get(path string) string {
	client := http.Client{Transport: e.Admin, Timeout: 5 * time.Second}
	response, err := client.Get("http://admin" + path)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// Stat returns the value of the counter or gauge whose name matches a regular expression, -1 unless
// exactly one matches.
func (e *EnvoyProcess) Stat(name string) int {
	var stats struct{ Stats []struct{ Value int } }
	text := e.Get("/stats?format=json&filter=" + url.QueryEscape("^"+name+"$"))
	if json.Unmarshal([]byte(text), &stats) != nil || len(stats.Stats) != 1 {
		return -1
	}
	return stats.Stats[0].Value
}

// WaitLive waits until Envoy is live: its server state is LIVE.
func (e *EnvoyProcess) WaitLive(t testing.TB) {
	t.Helper()
	Eventually(t, time.Minute, "Envoy is live", func() bool { return e.Get("/ready") != "" })
}

// FailingEnvoy is a shell script in place of Envoy: it prints a version and options when asked for
// them, and otherwise exits with an error.
const FailingEnvoy = `#!/bin/sh
case "$1" in
--version) echo "envoy  version: 0123456789012345678901234567890123456789/1.40.0/Clean/RELEASE/BoringSSL" ;;
--hot-restart-version) echo 11.104 ;;
--help) echo "   --restart-epoch <uint32_t>" ;;
*) echo it hurts >&2; exit 7 ;;
esac
`
