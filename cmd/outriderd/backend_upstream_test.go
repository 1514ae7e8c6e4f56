package main_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// TestBackendDown_BehindIstiod: the agent reports a backend of istiod's configuration that refuses
// connections. It detects the backend by Envoy's statistics.
func TestBackendDown_BehindIstiod(t *testing.T) {
	t.Parallel()
	u := newUpstreamed(t)
	dead := parts.FreePort(t)
	u.WriteFile("istio.d/web.yaml", u.WebServiceYAML(dead))
	u.StartReady()
	upstream := fmt.Sprintf("[discovery]\naddress = %q\nauth = \"none\"\n[log]\nlevel = ", u.address)
	levels, turn := []string{`"info"`, `"debug"`}, 0
	// The agent reads the statistics every minute, and also when a changed key takes effect without
	// a new epoch, such as log.level.
	looks := func(what string, done func(status string) bool) {
		t.Helper()
		rig.Eventually(t, 90*time.Second, what, func() bool {
			_, _, _ = u.GetThroughEnvoy("/hello")
			u.SetTOML(upstream + levels[turn%2])
			turn++
			_ = u.RunOutrider("reload", "--if-changed")
			return done(u.RunOutrider("status").Stdout)
		})
	}
	says := fmt.Sprintf("backend web.test at 127.0.0.1:%d fails: cannot connect (", dead)
	looks("status names the backend", func(status string) bool {
		return strings.Contains(status, says)
	})
	if ready, why := u.Ready(); !ready {
		t.Errorf("a dead backend makes the proxy unready: %s", why)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", dead))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
	looks("the first success ends it", func(status string) bool {
		return !strings.Contains(status, "backend web.test")
	})
}
