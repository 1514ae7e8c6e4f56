package capture

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// bootstrap configures an Envoy that answers captured connections with the port on which it
// received them.
const bootstrap = `
static_resources:
  listeners:
  - name: outbound
    address: {socket_address: {address: "::", port_value: 15001, ipv4_compat: true}}
    filter_chains: [{filters: [{name: answer, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config,
      response: {inline_string: "15001"}}}]}]
  - name: inbound
    address: {socket_address: {address: "::", port_value: 15006, ipv4_compat: true}}
    filter_chains: [{filters: [{name: answer, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config,
      response: {inline_string: "15006"}}}]}]
`

// rig is outrider-capture in a network namespace of its own, another host and, once it is started,
// an Envoy.
type rig struct {
	t       *testing.T
	other   *parts.OtherHost
	program string
	folder  string
	helper  *exec.Cmd
	envoy   *exec.Cmd
	client  *Client

	bootstrap    string    // of Envoy
	capabilities []uintptr // of Envoy
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, program: parts.CopyProgram(t, "outrider-capture"), folder: parts.ShortDir(t),
		bootstrap: bootstrap}
	r.other = newHostsWithoutEnvoy(t)
	r.start()
	return r
}

func (r *rig) socket() string { return filepath.Join(r.folder, "capture.sock") }

// start runs outrider-capture and connects to it.
func (r *rig) start() {
	r.t.Helper()
	r.helper = exec.Command(r.program, "-folder", r.folder, "-socket", r.socket(), "-envoy-user",
		fmt.Sprint(envoyUser), "-agent-user", fmt.Sprint(agentUser), "-resolv-conf",
		filepath.Join(r.folder, "resolv.conf"))
	r.begin(r.helper)
	parts.Eventually(r.t, 5*time.Second, "the helper serves", func() bool {
		var err error
		r.client, err = Dial(r.t.Context(), r.socket())
		return err == nil
	})
	r.t.Cleanup(r.client.Close)
}

func (r *rig) startEnvoy() {
	r.t.Helper()
	// opened as root, because Envoy's user cannot access the program's folder
	program, err := os.Open(parts.EnvoyPath(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = program.Close() }()
	r.envoy = exec.Command("/proc/self/fd/3", "--disable-hot-restart", "--concurrency", "2",
		"--config-yaml", r.bootstrap, "--log-level", "error")
	r.envoy.ExtraFiles = []*os.File{program}
	r.envoy.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: envoyUser,
		Gid: envoyUser}, AmbientCaps: r.capabilities}
	r.begin(r.envoy)
}

// begin starts a program and kills it when the test ends.
func (r *rig) begin(command *exec.Cmd) {
	r.t.Helper()
	log := &parts.SyncBuffer{}
	command.Stdout, command.Stderr = log, log
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	if err := command.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if r.t.Failed() {
			r.t.Logf("%s: %s", command.Path, log)
		}
	})
}

// kill kills a program and waits for its end.
func (r *rig) kill(command *exec.Cmd) {
	r.t.Helper()
	if err := command.Process.Kill(); err != nil {
		r.t.Fatal(err)
	}
	_ = command.Wait()
}

func (r *rig) apply(settings Settings) {
	r.t.Helper()
	if _, err := r.client.Apply(r.t.Context(), settings); err != nil {
		r.t.Fatal(err)
	}
}

// soon bounds actions that take outrider-capture a second or two on an idle machine. It is shorter
// than stallLimit, after which an Envoy counts as hung.
const soon = stallLimit - time.Second

// captures waits until outrider-capture has a state.
func (r *rig) captures(want State) {
	r.t.Helper()
	parts.Eventually(r.t, time.Minute, "capture is "+string(want), func() bool {
		s, err := r.client.Status(r.t.Context())
		return err == nil && s.State == want
	})
}

// answer connects to another host as the application's user and returns what answers.
func (r *rig) answer() (answer string) {
	r.t.Helper()
	parts.RunAs(r.t, appUser, func() {
		connection, err := net.DialTimeout("tcp", net.JoinHostPort(far[0], "80"), time.Second/2)
		if err != nil {
			answer = err.Error()
			return
		}
		defer func() { _ = connection.Close() }()
		_ = connection.SetDeadline(time.Now().Add(time.Second / 2))
		buffer := make([]byte, 64)
		n, err := connection.Read(buffer)
		if answer = string(buffer[:n]); err != nil && n == 0 {
			answer = err.Error()
		}
	})
	return answer
}

// answers waits until answer returns wanted, and returns how long that took.
func (r *rig) answers(limit time.Duration, wanted string) time.Duration {
	r.t.Helper()
	began := time.Now()
	parts.EventuallyWithObservation(r.t, limit, fmt.Sprintf("the answer %q", wanted), func() (bool, string) {
		last := r.answer()
		return last == wanted, last
	})
	return time.Since(began)
}
