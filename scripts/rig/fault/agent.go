package fault

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/rig"
)

func keeperKilled(s *Execution) {
	before := s.LiveEpoch()
	s.MarkFault()
	s.killKeeper()
	s.recovers(before)
	if rig.ProcessExists(before.PID) {
		s.Errorf("Envoy %d outlived its keeper", before.PID)
	}
}

func (s *Execution) killKeeper() {
	s.Helper()
	keepers := s.ProcessIDs("outrider-keeper")
	if len(keepers) != 1 {
		s.Fatalf("keepers: %v", keepers)
	}
	s.Signal(keepers[0], syscall.SIGKILL)
}

// adopted starts the agent and checks that it adopts an epoch that was live before.
func (s *Execution) adopted(before api.Epoch) {
	s.Helper()
	s.StartReady()
	if now := s.LiveEpoch(); now.PID != before.PID || now.Number != before.Number {
		s.Errorf("adopted %+v, not %+v", now, before)
	}
}

func agentKilled(s *Execution) {
	before := s.LiveEpoch()
	s.KillAgent()
	time.Sleep(quiet)
	s.adopted(before)
}

func agentKilledAtStart(s *Execution) {
	before := s.LiveEpoch()
	_, outcome := s.initialising()
	s.KillAgent()
	s.awaitAny(outcome)
	s.sound()
	s.adopted(before)
	rig.Eventually(s.TB, time.Minute, "the epoch that never gets live is given up", func() bool {
		epochs, err := s.Epochs()
		for _, epoch := range epochs {
			if epoch.State == api.EpochStarting {
				return false
			}
		}
		return err == nil
	})
}

func agentThenEnvoyKilled(s *Execution) {
	before := s.LiveEpoch()
	s.KillAgent()
	s.MarkFault()
	s.Signal(before.PID, syscall.SIGKILL)
	s.StartReady()
	if now := s.LiveEpoch(); now.PID == before.PID {
		s.Errorf("a dead epoch was adopted: %+v", now)
	}
}

func agentAndKeeperKilled(s *Execution) {
	before := s.LiveEpoch()
	s.KillAgent()
	s.MarkFault()
	s.killKeeper()
	s.StartReady()
	if rig.ProcessExists(before.PID) {
		s.Errorf("Envoy %d outlived its keeper", before.PID)
	}
}

// validates reports whether a process is an Envoy with --mode validate. Such a process may run a
// little longer than its agent.
func validates(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(line, []byte("\x00validate\x00"))
}

// agentKilledAtRandom repeatedly kills the agent, which is restarted each time, while reloads
// replace epochs. The next agent must adopt every Envoy that runs.
func agentKilledAtRandom(s *Execution) {
	stop := s.KeepAgentRunning()
	defer stop()
	reloads, reloaded := make(chan struct{}), make(chan struct{})
	// Reload continuously. A reload fails if the agent is killed meanwhile.
	go func() {
		defer close(reloaded)
		for {
			select {
			case <-reloads:
				return
			case <-time.After(50 * time.Millisecond):
				s.RunOutrider("reload")
			}
		}
	}()
	overlaps := 0
	for kill := range s.Options.Kills {
		// The kill happens at any time from the start of an agent until it has replaced an epoch.
		time.Sleep(rand.N(s.Options.ParentShutdown + time.Second))
		before := slices.DeleteFunc(s.ProcessIDs("envoy"), validates)
		if len(before) > 1 {
			overlaps++
		}
		if err := s.Daemon().Process.Kill(); err != nil {
			s.Errorf("kill %d: %v", kill, err)
		}
		rig.Eventually(s.TB, time.Minute, "the next agent answers", func() bool {
			epochs, err := s.Epochs()
			if err != nil || len(epochs) == 0 {
				return false
			}
			known := map[int]bool{}
			for _, epoch := range epochs {
				known[epoch.PID] = true
			}
			for _, pid := range before {
				if rig.ProcessExists(pid) && !known[pid] {
					s.Errorf("kill %d: Envoy %d was not adopted: %+v", kill, pid, epochs)
				}
			}
			return true
		})
	}
	close(reloads)
	<-reloaded
	stop()
	s.WaitReady(30 * time.Second)
	rig.Eventually(s.TB, 2*s.Options.ParentShutdown+time.Minute, "one Envoy is left",
		func() bool { return len(s.ProcessIDs("envoy")) == 1 })
	s.figure = fmt.Sprintf("%d kills, %d of them while two epochs ran", s.Options.Kills, overlaps)
}

var lostLines = regexp.MustCompile(`lines of Envoy's log were lost.*"lines":(\d+)`)

// flood makes Envoy log while no agent reads the log. Envoy must not block, and the next agent must
// report the number of lost lines.
func flood(s *Execution) {
	before := s.LiveEpoch()
	s.KillAgent()
	// The agent must not repeat Envoy's lines in its own log.
	s.WriteFile("conf.d/60-log.toml", "[log]\nenvoy = false\n")
	time.Sleep(s.Options.Flood)
	s.adopted(before)
	reported := 0
	rig.Eventually(s.TB, time.Minute, "the agent tells how many lines were lost", func() bool {
		reported = 0
		for _, match := range lostLines.FindAllStringSubmatch(s.Daemon().Output(), -1) {
			if n, err := strconv.Atoi(match[1]); err == nil {
				reported += n
			}
		}
		return reported > 0
	})
	s.figure = fmt.Sprintf("%d lines dropped and told in %v", reported, s.Options.Flood)
}
