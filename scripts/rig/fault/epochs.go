package fault

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/scripts/parts"
	"outrider.org/outrider/scripts/rig"
)

// initializingFlag is the offset, in Envoy's shared memory, of the flag that is set while an epoch
// initializes.
const initializingFlag = 96

func flagLeftSet(s *Execution) {
	before := s.LiveEpoch()
	memory, err := os.OpenFile(rig.SharedMemoryPath(before.PID), os.O_RDWR, 0)
	if err != nil {
		s.Fatal(err)
	}
	_, err = memory.WriteAt([]byte{1}, initializingFlag)
	_ = memory.Close()
	if err != nil {
		s.Fatal(err)
	}
	if _, now := s.reloaded(); now.Mode != "hot-restart" {
		s.Errorf("epoch %d is %s, although the flag could be cleared", now.Number, now.Mode)
	}
}

func sharedMemoryGone(s *Execution) {
	before := s.LiveEpoch()
	if err := os.Remove(rig.SharedMemoryPath(before.PID)); err != nil {
		s.Fatal(err)
	}
	if _, now := s.reloaded(); now.Mode != "side-by-side" {
		s.Errorf("epoch %d is %s, although there is no shared memory", now.Number, now.Mode)
	}
}

// afterLive is the delay between the time at which an epoch becomes live and a fault in it or its
// parent.
const afterLive = time.Second

// overlap reloads, and returns the old epoch and the new one when the latter has been live for
// afterLive.
func (s *Execution) overlap() (parent, child api.Epoch) {
	s.Helper()
	parent, child = s.reloaded()
	time.Sleep(time.Until(child.LiveSince.Add(afterLive)))
	return parent, child
}

// recovers waits until an epoch other than from is live.
func (s *Execution) recovers(from api.Epoch) {
	s.Helper()
	rig.Eventually(s.TB, time.Minute, "another Envoy is live",
		func() bool { return s.LiveEpoch().PID != from.PID })
}

// strikeAt sends a signal that ends an epoch, and waits until another epoch is live.
func (s *Execution) strikeAt(victim api.Epoch, signal syscall.Signal) {
	s.Helper()
	s.MarkFault()
	s.Signal(victim.PID, signal)
	s.recovers(victim)
}

func newKilled(s *Execution) {
	_, child := s.overlap()
	s.strikeAt(child, syscall.SIGKILL)
}

func newTerminated(s *Execution) {
	_, child := s.overlap()
	s.strikeAt(child, syscall.SIGTERM)
}

func envoyKilled(s *Execution) { s.strikeAt(s.LiveEpoch(), syscall.SIGKILL) }

func envoyTerminated(s *Execution) { s.strikeAt(s.LiveEpoch(), syscall.SIGTERM) }

func parentKilled(s *Execution) { s.parentEnds(syscall.SIGKILL) }

func parentTerminated(s *Execution) { s.parentEnds(syscall.SIGTERM) }

// parentEnds ends the parent of the live epoch by a signal. It waits until the child has sent its
// parent the request to terminate, over the socket of hot restarts. The keeper must respond in
// place of the parent: otherwise the main thread of the child would block, and the child would
// abort after ten seconds.
func (s *Execution) parentEnds(signal syscall.Signal) {
	s.Helper()
	parent, child := s.overlap()
	s.MarkFault()
	s.Signal(parent.PID, signal)
	time.Sleep(time.Until(child.LiveSince.Add(s.Options.ParentShutdown + time.Second)))
	if err := s.CheckAdmin(); err != nil {
		s.Errorf("after the child told its parent to terminate: %v", err)
	}
	if now := s.LiveEpoch(); now.PID != child.PID {
		s.Errorf("the child did not survive its parent: %+v, before %+v", now, child)
	}
}

func parentKilledAtStart(s *Execution) {
	before := s.LiveEpoch()
	child, outcome := s.initialising()
	s.sound()
	s.MarkFault()
	s.Signal(before.PID, syscall.SIGKILL)
	rig.Eventually(s.TB, time.Minute, "an Envoy that works is live", func() bool {
		now := s.LiveEpoch()
		return now.PID != before.PID && now.PID != child.PID
	})
	// The reload in progress continues. It may be refused, or wait for live_timeout.
	s.awaitAny(outcome)
}

// awaitAny waits until a reload ends, whatever its result.
func (s *Execution) awaitAny(outcome <-chan rig.CommandResult) {
	s.Helper()
	select {
	case <-outcome:
	case <-time.After(60 * time.Second):
		s.Error("the reload never ended")
	}
}

func parentStopped(s *Execution) {
	parent, child := s.reloaded()
	// When its drain has ended, the parent has no HTTP connections.
	time.Sleep(time.Until(child.LiveSince.Add(s.Options.Drain + quiet)))
	parts.PauseProcess(s, parent.PID)
	end := child.LiveSince.Add(s.Options.ParentShutdown + 10*time.Second)
	for rig.ProcessExists(parent.PID) {
		if err := s.CheckAdmin(); err != nil {
			s.Errorf("the child's admin while its parent hangs: %v", err)
		}
		if time.Now().After(end) {
			s.Errorf("the hung parent %d was not killed", parent.PID)
			s.Signal(parent.PID, syscall.SIGKILL)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if now := s.LiveEpoch(); now.PID != child.PID {
		s.Errorf("the child did not survive its hung parent: %+v, before %+v", now, child)
	}
}

func parentStoppedBefore(s *Execution) {
	before := s.LiveEpoch()
	s.MarkFault()
	parts.PauseProcess(s, before.PID)
	// s.reloaded would request the status first, which would wait for the stopped epoch.
	if result := s.RunOutrider("reload"); result.ExitCode != 0 {
		s.Errorf("reload: exit %d: %s%s", result.ExitCode, result.Stdout, result.Stderr)
	}
}

// storm requests a reload every second, quickStorm more often than epochs can be replaced.
func storm(s *Execution)      { s.reloadEvery(time.Second) }
func quickStorm(s *Execution) { s.reloadEvery(200 * time.Millisecond) }

// reloadEvery requests reloads with a gap between their starts. It does not wait for the result of
// one before the next.
func (s *Execution) reloadEvery(gap time.Duration) {
	s.Helper()
	before := s.LiveEpoch()
	requested := s.Options.ReloadSeconds * int(time.Second/gap)
	var reloads sync.WaitGroup
	for range requested {
		reloads.Go(func() {
			if result := s.RunOutrider("reload"); result.ExitCode != 0 {
				s.Errorf("reload: exit %d: %s%s", result.ExitCode, result.Stdout, result.Stderr)
			}
		})
		time.Sleep(gap)
	}
	reloads.Wait()
	s.figure = fmt.Sprintf("%d reloads made %d epochs", requested,
		s.LiveEpoch().Number-before.Number)
}
