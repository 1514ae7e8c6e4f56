package systemtest

import (
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/machine"
)

// longDrain makes an epoch that has clients drain for longer than any command of a test may take.
const longDrain = "[envoy]\ndrain_duration = \"200s\"\nparent_shutdown_duration = \"300s\"\n"

// soon is longer than a reload takes on a busy machine, and much shorter than the drain of
// longDrain.
const soon = 60 * time.Second

// onBoth runs a test on two machines. The system call filter of the second one refuses pidfd_getfd
// to the keeper, as the default filters of systemd-nspawn and Docker do.
func onBoth(t *testing.T, test func(t *testing.T, h *Host)) {
	t.Helper()
	for name, calls := range map[string][]string{
		"a machine": nil, "a container without pidfd_getfd": {"~pidfd_getfd"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, machine.Options{AllowedSystemCalls: calls})
			h.WriteText("/etc/outrider/conf.d/50-drain.toml", longDrain)
			h.MustRun(t, "systemctl", "start", "outrider.service")
			test(t, h)
		})
	}
}

// connections returns how many connections an epoch has according to the status, -1 if the epoch
// does not run.
func (h *Host) connections(number int) int {
	h.t.Helper()
	for _, e := range h.Status().Epochs {
		if e.Number == number && e.State != api.EpochExited {
			return int(e.Connections)
		}
	}
	return -1
}

// connect opens a connection from inside the machine to one of its ports. leave closes it.
func (h *Host) connect(port int) (leave func()) {
	h.t.Helper()
	client := h.Command(h.t.Context(), "bash", "-c",
		fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d && cat", port))
	input, err := client.StdinPipe()
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	leave = func() { end(input, client) }
	h.t.Cleanup(leave)
	return leave
}

func end(input io.Closer, client *exec.Cmd) {
	_ = input.Close()
	_ = client.Wait()
}

// A reload waits for the client connections of an epoch that still drains, but not for its idle
// connections to backends or for connections to Outrider's own listeners. The numbers of
// connections that status, metrics and messages show do not include the latter two.
func TestReload_WaitsForClientsOnly(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, h *Host) {
		h.connect(15021)
		h.connect(15090)
		for number := range 3 {
			for range 3 {
				h.MustServe()
			}
			if idle := h.RunScript("ss -Htn state established dport = :9000"); idle == "" {
				t.Error("Envoy has no connection to the backend")
			}
			if left := h.connections(number); left != 0 {
				t.Errorf("epoch %d has %d connections without a client", number, left)
			}
			began := time.Now()
			h.MustRun(t, "outrider", "reload")
			if took := time.Since(began); took > soon {
				t.Errorf("reload %d took %v without a client", number, took)
			}
		}

		leave := h.connect(81)
		h.Eventually(soon, "the client is counted", func() bool { return h.connections(3) == 1 })
		h.MustRun(t, "outrider", "reload")
		reloaded := make(chan error, 1)
		go func() {
			_, err := h.Run(t.Context(), "outrider", "reload")
			reloaded <- err
		}()
		h.Eventually(soon, "the reload says that it waits for the client", func() bool {
			return strings.Contains(h.Status().ReloadPhase,
				"waiting for epoch 3 to finish draining, 1 client connection left, until ")
		})
		select {
		case err := <-reloaded:
			t.Errorf("the reload has not waited for the client: %v", err)
		default:
		}
		leave()
		if err := <-reloaded; err != nil {
			t.Error(err)
		}
		h.Eventually(soon, "epoch 5 is live", func() bool { return h.LiveEpoch().Number == 5 })

		h.connect(81)
		h.connect(15090)
		h.Eventually(soon, "the client is counted", func() bool { return h.connections(5) == 1 })
		for _, command := range []string{"outrider epochs | grep -E '^5 +live +[0-9]+ +[^ ]+ +1 '",
			"curl -s 127.0.0.1:15020/stats/prometheus | " +
				"grep -x 'outrider_client_connections{epoch=\"5\"} 1'",
			"outrider drain | grep 'draining; 1 client connection is left; new ones are accepted until '"} {
			if out, err := h.Run(t.Context(), "sh", "-c", command); err != nil {
				t.Errorf("%s: %v: %s", command, err, out)
			}
		}
	})
}

// `outrider reload --now` closes the connections that a reload would wait for, and says how many
// there are. A script must add --yes; otherwise nothing happens. If the command is interrupted, the
// agent continues the reload.
func TestReload_Now(t *testing.T) {
	t.Parallel()
	h := newHost(t, machine.Options{})
	h.WriteText("/etc/outrider/conf.d/50-drain.toml", longDrain)
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.connect(81)
	h.Eventually(soon, "the client is counted", func() bool { return h.connections(0) == 1 })
	h.MustRun(t, "outrider", "reload")
	h.Eventually(soon, "epoch 0 has closed its listeners", func() bool {
		out, err := h.Run(t.Context(), "timeout", "--signal=INT", "3", "outrider", "reload")
		return err != nil && strings.Contains(out, "interrupted; the agent continues")
	})
	if doing := h.Status().ReloadPhase; !strings.Contains(doing, "waiting for epoch 0") {
		t.Errorf("after the interruption: %q", doing)
	}
	out, err := h.Run(t.Context(), "outrider", "reload", "--now")
	if err == nil || !strings.Contains(out, "add --yes") || h.connections(0) != 1 {
		t.Errorf("without --yes: %v: %s; %d connections", err, out, h.connections(0))
	}
	h.WriteText("/etc/outrider/conf.d/60-broken.toml", "[envoy]\nnonsense = 1\n")
	if out, err := h.Run(t.Context(), "outrider", "reload", "--now", "--yes"); err == nil ||
		h.connections(0) != 1 {
		t.Errorf("a broken configuration: %v: %s; %d connections", err, out, h.connections(0))
	}
	// A reload whose bootstrap only Envoy refuses closes no connections either.
	h.WriteText("/etc/outrider/override.yaml", "static_resources: {clusters: [{name: none, type: "+
		"EDS, "+
		"connect_timeout: 1s}]}\n")
	h.WriteText("/etc/outrider/conf.d/60-broken.toml",
		"[envoy]\nbootstrap_override = \"/etc/outrider/override.yaml\"\n")
	if out, err := h.Run(t.Context(), "outrider", "reload", "--now", "--yes"); err == nil ||
		!strings.Contains(out, "Envoy does not accept") || h.connections(0) != 1 {
		t.Errorf("a refused bootstrap: %v: %s; %d connections", err, out, h.connections(0))
	}
	h.MustRun(t, "rm", "/etc/outrider/conf.d/60-broken.toml")
	began := time.Now()
	out, err = h.Run(t.Context(), "outrider", "reload", "--now", "--yes")
	const costs = "epoch 0 still drains: --now ends 1 client connection"
	if took := time.Since(began); err != nil || !strings.Contains(out, costs) || took > soon {
		t.Errorf("took %v: %v: %s", took, err, out)
	}
	if left := h.connections(0); left != -1 {
		t.Errorf("epoch 0 still has %d connections", left)
	}
	h.MustServe()
	// A hot restart from the live epoch works although its own parent was killed.
	h.MustRun(t, "outrider", "reload")
	h.MustServe()
}
