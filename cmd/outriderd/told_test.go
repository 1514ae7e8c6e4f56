package main_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

// The agent notifies systemd of a reload if it refuses a changed file, but not if the change has no
// effect.
func TestReload_NotifiesManagerOfRefusal(t *testing.T) {
	manager, err := net.ListenUnixgram("unixgram",
		&net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", manager.LocalAddr().String())
	told := make(chan string, 1024)
	go func() {
		defer close(told)
		for buffer := make([]byte, 1<<16); ; {
			n, err := manager.Read(buffer)
			if err != nil {
				return
			}
			for line := range strings.Lines(string(buffer[:n])) {
				if line = strings.TrimSpace(line); line == "RELOADING=1" || line == "READY=1" ||
					strings.HasPrefix(line, "STATUS=epoch") {
					told <- line
				}
			}
		}
	}()
	until := func(end string) (states []string) {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			select {
			case line := <-told:
				if strings.Contains(line, "=1") {
					states = append(states, line)
				}
				if strings.Contains(line, end) {
					return states
				}
			case <-deadline:
				t.Fatalf("%q is not told; %q is", end, states)
			}
		}
	}
	r := rig.New(t, rig.Options{Race: true})
	r.SetTOML("")
	r.StartReady()
	// The keeper, which is a child of this agent, also sends READY=1, possibly after Envoy's start.
	for told := until("serves"); len(told) < 2; {
		told = append(told, until("READY=1")...)
	}
	for i, broken := range []string{"concurrency = \"many\"\n", "concurrency = false\n"} {
		r.SetTOML("[envoy]\n" + broken)
		if diff := cmp.Diff([]string{"RELOADING=1", "READY=1"},
			until([]string{`"many"`, "false"}[i])); diff != "" {
			t.Errorf("refused: %s", diff)
		}
	}
	r.SetTOML("# nothing\n")
	rig.Eventually(t, time.Minute, "the cure is read", func() bool {
		var status api.Status
		r.RunOutriderJSON(&status, "status")
		return status.LastReload != nil && status.LastReload.Outcome == api.OutcomeUnchanged
	})
	if diff := cmp.Diff([]string(nil), until("serves")); diff != "" {
		t.Errorf("put back: %s", diff)
	}
}
