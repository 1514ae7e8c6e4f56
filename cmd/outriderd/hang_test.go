package main_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// watchdog receives the sd_notify messages of an agent.
type watchdog struct {
	interval time.Duration
	fed      chan struct{}
}

// newWatchdog makes the agents of this test send their sd_notify messages to the returned watchdog.
func newWatchdog(t *testing.T) watchdog {
	t.Helper()
	manager, err := net.ListenUnixgram("unixgram",
		&net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = manager.Close() })
	t.Setenv("NOTIFY_SOCKET", manager.LocalAddr().String())
	t.Setenv("WATCHDOG_USEC", "4000000")
	w := watchdog{4 * time.Second, make(chan struct{}, 1024)}
	go func() {
		for buffer := make([]byte, 1<<16); ; {
			n, err := manager.Read(buffer)
			if err != nil {
				return
			}
			if strings.Contains(string(buffer[:n]), "WATCHDOG=1") {
				w.fed <- struct{}{}
			}
		}
	}()
	return w
}

// isFed checks, for at least the watchdog interval, that the agent sends WATCHDOG=1 often enough.
func (w watchdog) isFed(t *testing.T) {
	t.Helper()
	for len(w.fed) > 0 {
		<-w.fed // discard earlier messages
	}
	for begun := time.Now(); time.Since(begun) < w.interval; {
		select {
		case <-w.fed:
		case <-time.After(w.interval):
			t.Errorf("the watchdog is not fed for %v: systemd would kill the agent", w.interval)
		}
	}
}

// While Envoy's admin interface or the keeper hangs, the agent feeds the watchdog, and its status
// shows which phase a reload waits in. The reload ends, and the next one succeeds.
func TestReload_AnswersWhileEnvoyOrKeeperHangs(t *testing.T) {
	for _, hangs := range []struct {
		program, toml, phase string
		outcome              api.ReloadOutcome
	}{
		{"envoy", "[envoy]\nlog_level = \"debug\"\n", "Envoy's log levels", api.OutcomeApplied},
		{"outrider-keeper", "[envoy]\nconnect_timeout = \"3s\"\n", "starting a new epoch", ""},
	} {
		t.Run(hangs.program, func(t *testing.T) {
			const unwatched = "[reload]\nwatch = false\n"
			watchdog := newWatchdog(t)
			r := rig.New(t, rig.Options{TOML: unwatched})
			r.StartReady()
			pid := r.ProcessIDs(hangs.program)[0]
			resume := parts.PauseProcess(t, pid)
			defer resume()
			r.SetTOML(unwatched + hangs.toml)
			ended := make(chan rig.CommandResult, 1)
			go func() { ended <- r.RunOutrider("reload", "--if-changed", "--json") }()
			rig.Eventually(t, time.Minute, "the status says what is waited for", func() bool {
				var status api.Status
				begun := time.Now()
				r.RunOutriderJSON(&status, "status")
				if took := time.Since(begun); took > 10*time.Second {
					t.Errorf("the status took %v", took)
				}
				return strings.Contains(status.ReloadPhase, hangs.phase)
			})
			watchdog.isFed(t)
			if hangs.program != "envoy" { // without the keeper, the reload cannot end
				resume()
			}
			if got := <-ended; hangs.outcome != "" &&
				!strings.Contains(got.Stdout, string(hangs.outcome)) {
				t.Errorf("%+v", got)
			}
			resume()
			r.WaitReady(time.Minute)
			r.SetTOML(unwatched + "[log]\nlevel = \"info\"\n")
			if got := r.RunOutrider("reload"); got.ExitCode != 0 {
				t.Errorf("the next reload: %+v", got)
			}
		})
	}
}

// While the file system with a CA certificate hangs, the agent feeds the watchdog, reports the file
// as a problem, and processes status requests, reloads and changes of the mesh.
func TestMesh_AnswersWhileCertificateHangs(t *testing.T) {
	mount := t.TempDir()
	parts.HangingMount(t, mount)
	watchdog := newWatchdog(t)
	r := rig.New(t, rig.Options{Mesh: map[string]string{"far.yaml": `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far}
spec:
  hosts: [far.test]
  resolution: STATIC
  ports: [{number: 443, name: p, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: far}
spec: {host: far.test, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: ` + mount + `/ca.pem}}}
`}})
	r.SetTOML("")
	r.StartReady()
	watchdog.isFed(t)
	var status api.Status
	r.RunOutriderJSON(&status, "status")
	if len(status.Problems) == 0 || !strings.Contains(status.Problems[0].Message, mount+"/ca.pem") {
		t.Errorf("problems: %+v", status.Problems)
	}
	if got := r.RunOutrider("reload", "--if-changed"); got.ExitCode != 0 {
		t.Errorf("reload: %+v", got)
	}
	r.SetTOML("[envoy]\nconnect_timeout = \"3s\"\n")
	if got := r.RunOutrider("reload"); got.ExitCode != 0 {
		t.Errorf("a reload that starts an epoch: %+v", got)
	}
	r.WriteFile("mesh.d/broken.yaml", "a: [")
	rig.Eventually(t, time.Minute, "a changed file is read", func() bool {
		r.RunOutriderJSON(&status, "status")
		return len(status.Problems) == 2
	})
}
