package main_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

// customFormat is a complete bootstrap with Envoy's admin interface on a TCP port, as in most
// existing bootstraps.
const customFormat = `admin:
  address:
    socket_address: {address: 127.0.0.1, port_value: %d}
static_resources:
  listeners:
  - name: web
    address:
      socket_address: {address: 127.0.0.1, port_value: %d}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: "custom %d"}}}]}
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

// TestCustomConfigFile_HasTheViewsPort runs a custom bootstrap whose admin interface is on [envoy]
// admin_port, where the agent otherwise serves its read-only view of it. The agent releases the
// port for Envoy at a start, at an adoption and at a reload, and binds it again afterwards.
func TestCustomConfigFile_HasTheViewsPort(t *testing.T) {
	t.Parallel()
	r := rig.New(t, rig.Options{Race: true})
	const short = "[envoy]\ndrain_duration = \"1s\"\nparent_shutdown_duration = \"2s\"\n"
	custom := func(number, port int) string {
		r.WriteFile("custom.yaml", fmt.Sprintf(customFormat, r.Ports.Admin, port, number))
		return short + fmt.Sprintf("custom_config_file = %q\n", filepath.Join(r.Dir, "custom.yaml"))
	}
	r.SetTOML(custom(1, r.Ports.HTTP))
	if checked := r.RunOutrider("config", "check",
		filepath.Join(r.Dir, "outrider.toml")); checked.ExitCode != 0 {
		t.Errorf("config check: %s%s", checked.Stdout, checked.Stderr)
	}
	daemon := r.StartReady()
	// Envoy's admin interface accepts this POST request; the agent's read-only view refuses it.
	admin := func() (who string) {
		answer, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/healthcheck/ok", r.Ports.Admin),
			"", nil)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode == http.StatusForbidden {
			return "view"
		}
		return fmt.Sprint("Envoy ", answer.StatusCode)
	}
	yields := func() bool {
		return slices.ContainsFunc(conditions(t, r), func(sentence string) bool {
			return strings.Contains(sentence, "there is no view of it on [envoy] admin_port")
		})
	}
	envoys := func(when string) {
		t.Helper()
		rig.Eventually(t, time.Minute,
			when+": Envoy's own admin answers, and the condition stands", func() bool {
				return admin() == "Envoy 200" && yields()
			})
		if code, body, err := r.GetThroughEnvoy("/"); code != 200 || !strings.HasPrefix(body,
			"custom") {
			t.Errorf("%s: %d %s %v", when, code, body, err)
		}
		if clusters := r.RunOutrider("proxy", "status"); clusters.ExitCode != 0 {
			t.Errorf("%s: proxy status: %s", when, clusters.Stderr)
		}
	}
	views := func(when string) {
		t.Helper()
		rig.Eventually(t, time.Minute, when+": the view answers", func() bool {
			return admin() == "view" && !yields()
		})
	}
	reload := func(exit int, toml string) {
		t.Helper()
		r.SetTOML(toml)
		if result := r.RunOutrider("reload"); result.ExitCode != exit {
			t.Fatalf("reload: exit %d, should be %d: %s%s", result.ExitCode, exit, result.Stdout,
				result.Stderr)
		}
	}
	envoys("at the start")
	if n := strings.Count(daemon.Output(),
		"The bootstrap has Envoy's own admin interface on"); n != 1 {
		t.Errorf("the log says %d times that the view yields", n)
	}
	r.KillAgent()
	r.StartReady()
	envoys("to the next agent")
	reload(0, custom(2, r.Ports.HTTP))
	envoys("after a reload")
	r.Signal(r.LiveEpoch().PID, 11)
	envoys("after a crash")
	reload(0, short)
	views("without the file")
	reload(1, custom(3, r.Ports.Backend)) // refused: another process uses the listener's port
	views("after a refused reload")
	reload(0, custom(4, r.Ports.HTTP))
	envoys("at a reload")
}
