package systemtest

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/rig"
)

// abandonEnvironment is an environment variable with a number of seconds. It makes this program run
// abandon for that time.
const (
	abandonEnvironment = "OUTRIDER_TEST_ABANDON"
	abandonRate        = 500 // calls per second
)

// abandon calls the agent's private socket continuously, and disconnects before each response. It
// prints the number of calls.
func abandon() int {
	seconds, err := strconv.Atoi(os.Getenv(abandonEnvironment))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ticker := time.NewTicker(time.Second / abandonRate)
	defer ticker.Stop()
	taken := 0
	for began := time.Now(); time.Since(began) < time.Duration(seconds)*time.Second; <-ticker.C {
		connection, err := net.Dial("unix", "/run/outrider/outrider.sock")
		if err != nil {
			continue // the socket's limit of connections is reached, which is permitted
		}
		_, err = io.WriteString(connection, "GET /v1/status HTTP/1.1\r\nHost: outrider\r\n\r\n")
		if err == nil {
			taken++
		}
		_ = connection.Close()
	}
	fmt.Println(taken)
	return 0
}

func TestRestart_AfterAbandonedStatusCallsOfAnyUser(t *testing.T) {
	t.Parallel()
	// mostTime is generous, because other tests keep the machine busy.
	seconds, mostTime := 10, 10*time.Second
	if full() {
		seconds, mostTime = 60, 2*time.Second
	}
	const mostKeeperGrowth = 2 << 20 // bytes
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := NewHost(t, filepath.Dir(program)+":/opt/test")
	h.MustRun(t, "systemctl", "start", "outrider.service")
	h.MustServe()
	running := h.StartLoad(standard())
	h.Eventually(time.Minute, "the load has its connections", func() bool {
		return h.LiveEpoch().Connections >= 36
	})
	agent, keeper, envoy := h.MainPID("outrider"), h.MainPID("outrider-envoy"), h.LiveEpoch().PID
	before := h.memory("outrider-envoy", "VmRSS")
	agentBefore := h.memory("outrider", "RssAnon")

	running.Mark("abandoned calls")
	taken := h.MustRun(t, "systemd-run", "--quiet", "--wait", "--pipe", "-p", "User=nobody",
		"-E", fmt.Sprintf("%s=%d", abandonEnvironment, seconds),
		"/opt/test/"+filepath.Base(program))
	if h.MainPID("outrider") != agent {
		t.Error("the agent did not survive the calls")
	}
	agentAfter := h.memory("outrider", "RssAnon")
	running.Mark("restart")
	began := time.Now()
	h.MustRun(t, "systemctl", "restart", "outrider.service")
	took := time.Since(began)
	peak, err := strconv.Atoi(strings.Fields(h.ProcessStatusField(keeper, "VmHWM"))[0])
	if err != nil {
		t.Fatal(err)
	}
	peak <<= 10
	if h.MainPID("outrider-envoy") != keeper || h.LiveEpoch().PID != envoy {
		t.Error("the keeper or Envoy is another one")
	}
	report := running.Stop()
	t.Logf("%s calls in %d s; restarted in %v; %d requests, %d lost", taken, seconds, took,
		report.Total, report.Lost)
	t.Logf("keeper: %d kB before, %d kB at most; agent: %d kB before, %d kB after",
		before>>10, peak>>10, agentBefore>>10, agentAfter>>10)
	if took > mostTime {
		t.Errorf("the restart took %v", took)
	}
	if peak-before > mostKeeperGrowth {
		t.Errorf("the keeper grew by %d kB", (peak-before)>>10)
	}
	if lost := rig.CountLosses(report, nil); len(lost) > 0 || report.Total == 0 {
		t.Errorf("lost of %d requests: %v; marks %v", report.Total, lost, report.Marks)
	}
}
