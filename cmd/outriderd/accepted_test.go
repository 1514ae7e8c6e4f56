package main_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// asking sends requests for /web continuously, until stop is called. stop returns a line for each
// failed request.
func asking(r *rig.Rig) (stop func() []string) {
	done, lost := make(chan struct{}), make(chan []string)
	go func() {
		var wrong []string
		for {
			if code, _, err := r.GetThroughEnvoy("/web"); err != nil || code != 200 {
				wrong = append(wrong, fmt.Sprintf("%s: %d %v", time.Now().Format(time.TimeOnly),
					code, err))
			}
			select {
			case <-done:
				lost <- wrong
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return func() []string {
		close(done)
		return <-lost
	}
}

// adminText returns the response of the live Envoy's admin interface to a path, or the error.
func adminText(r *rig.Rig, path string) string {
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", r.Ports.Admin, path))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return fmt.Sprint(string(text), err)
}

// clusters returns the dynamic clusters of the live Envoy as JSON.
func clusters(r *rig.Rig) string {
	return adminText(r, "/config_dump?resource=dynamic_active_clusters")
}

// TestAcceptedVersion_OutlivesEnvoy makes Envoy refuse a change of a cluster that all requests use.
// The agent then sends the last accepted version of the cluster to each later Envoy, which has
// never received it. A restarted agent does that, too. No request fails.
func TestAcceptedVersion_OutlivesEnvoy(t *testing.T) {
	t.Parallel()
	for _, delta := range []bool{true, false} {
		t.Run(fmt.Sprint("delta ", delta), func(t *testing.T) {
			toml := fmt.Sprintf(
				"[envoy]\ndrain_duration = \"1s\"\nparent_shutdown_duration = "+
					"\"2s\"\n[reload]\nwatch = false\n[discovery]\ndelta = %v\n", delta)
			r := rig.New(t, rig.Options{Race: true, TOML: toml})
			r.StartReady()
			remembered := filepath.Join(r.Dir, "state", "mesh-refusals")
			patch := func(value, more string) {
				r.WriteFile("mesh.d/patch.yaml",
					"apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: "+
						"{name: patch, namespace: default}\nspec:\n"+
						"  configPatches:\n  - applyTo: CLUSTER\n    match: {cluster: {service: "+
						"web.test}}\n    patch: {operation: MERGE, value: "+value+"}\n"+more)
			}
			// bad makes Envoy refuse both the cluster and the listener. Clusters are sent first, so
			// Envoy never receives the invalid listener.
			bad := func() {
				patch("{lb_policy: CLUSTER_PROVIDED}",
					"  - applyTo: LISTENER\n    patch: {operation: MERGE, value: {access_log: "+
						"[{name: unknown, typed_config: {'@type': "+
						"type.googleapis.com/outrider.test.Unknown}}]}}\n")
			}
			refused := func(is bool) {
				t.Helper()
				rig.Eventually(t, time.Minute,
					fmt.Sprint("the refusal is reported and persisted: ", is), func() bool {
						check := r.RunOutrider("mesh", "check")
						state, _ := os.ReadFile(remembered) // an absent file contains no refusal
						refused := check.ExitCode == api.ExitRefused &&
							strings.Contains(check.Stderr, "cluster provided LB")
						return is == refused && is == strings.Contains(string(state), "cluster provided LB")
					})
			}
			changes := 0
			change := func() {
				t.Helper()
				changes++
				r.WriteFile("mesh.d/routes.yaml",
					fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: "+
						"VirtualService\nmetadata: {name: web, namespace: default}\nspec:\n"+
						"  hosts: [web.test]\n  http:\n  - {match: [{uri: {exact: /new%d}}], "+
						"directResponse: {status: 418}}\n  - route: [{destination: {host: "+
						"web.test}}]\n", changes))
				r.WriteFile("mesh.d/other.yaml",
					fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: "+
						"ServiceEntry\nmetadata: {name: other, namespace: default}\nspec:\n"+
						"  hosts: [other%d.test]\n  ports: [{number: %d, name: http, protocol: "+
						"HTTP}]\n  resolution: STATIC\n  endpoints: [{address: 127.0.0.1}]\n",
						changes, r.Ports.HTTP))
				rig.Eventually(t, time.Minute, "Envoy takes another change", func() bool {
					code, _, err := r.GetThroughEnvoy(fmt.Sprintf("/new%d", changes))
					return err == nil && code == 418 && strings.Contains(clusters(r),
						fmt.Sprintf("other%d.test", changes))
				})
			}
			reload := func() {
				t.Helper()
				if told := r.RunOutrider("reload"); told.ExitCode != 0 {
					t.Errorf("reload: exit %d: %s", told.ExitCode, told.Stderr)
				}
			}
			bad()
			refused(true)

			stop := asking(r)
			reload()
			change()
			refused(true)
			if lost := stop(); len(lost) > 0 {
				t.Errorf("a new epoch: %d requests were lost: %q", len(lost), lost)
			}

			r.Signal(r.LiveEpoch().PID, syscall.SIGKILL)
			rig.Eventually(t, time.Minute, "the next Envoy answers", func() bool {
				code, _, err := r.GetThroughEnvoy("/web")
				return err == nil && code == 200
			})
			refused(true)

			stop = asking(r)
			r.KillAgent()
			r.StartReady()
			change()
			refused(true)
			// another label makes Envoy another kind of proxy for the discovery server
			r.SetTOML(toml + "[node]\nlabels = {tier = \"other\"}\n")
			reload()
			change()
			refused(true)
			if lost := stop(); len(lost) > 0 {
				t.Errorf("another agent: %d requests were lost: %q", len(lost), lost)
			}

			stop = asking(r)
			patch("{connect_timeout: 3.25s}", "")
			rig.Eventually(t, time.Minute, "the cure reaches Envoy",
				func() bool { return strings.Contains(clusters(r), `"3.250s"`) })
			refused(false)
			bad()
			refused(true)
			if lost := stop(); len(lost) > 0 {
				t.Errorf("cured and broken: %d requests were lost: %q", len(lost), lost)
			}
			if err := os.Remove(filepath.Join(r.Dir, "mesh.d/web.yaml")); err != nil {
				t.Fatal(err)
			}
			rig.Eventually(t, time.Minute, "what is removed is gone", func() bool {
				now := clusters(r)
				return !strings.Contains(now, "web.test") && strings.Contains(now, "other")
			})
			if err := os.Remove(filepath.Join(r.Dir, "mesh.d/patch.yaml")); err != nil {
				t.Fatal(err)
			}
			refused(false)
		})
	}
}
