package keeper

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// reap collects the exit status of children. It waits for each pid separately and holds the lock,
// so that no signal is sent to a pid that has been freed. One SIGCHLD may stand for several exits.
func (s *server) reap() {
	for _, c := range s.find((*child).lives) {
		if exit, ended := wait(c.process.PID); ended {
			s.exited(c, exit)
		}
	}
	for pid, done := range s.commands {
		if exit, ended := wait(pid); ended {
			delete(s.commands, pid)
			if done != nil {
				done <- exit // never blocks: the channel is buffered
			}
		}
	}
}

// wait reports whether a child has ended, and how.
func wait(pid int) (Exit, bool) {
	var status unix.WaitStatus
	for {
		reaped, err := unix.Wait4(pid, &status, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // the process is no longer a child, which should not happen
			return Exit{Code: -1, At: time.Now()}, true
		case reaped == 0:
			return Exit{}, false
		case status.Signaled():
			return Exit{Code: -1, Signal: unix.SignalName(status.Signal()),
				CoreDump: status.CoreDump(), At: time.Now()}, true
		case status.Exited():
			return Exit{Code: status.ExitStatus(), At: time.Now()}, true
		}
		// The child was stopped or continued, not ended.
	}
}

// exited records an exit and its consequences, and publishes it once the last lines are read.
func (s *server) exited(c *child, exit Exit) {
	exit.KilledAtKeeperExit = s.stopping
	c.process.Exit = &exit
	if c.standIn != nil {
		_ = c.standIn.socket.Close()
		c.standIn = nil
	}
	s.standInFor(c)
	s.removeAdminSocket(c)
	s.forgetOldest()
	if s.steered != nil && s.steered.from == c.process.ID {
		s.steered.closing.Stop()
		s.steered = nil
		go s.release()
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.updateIdleTimer()
	go s.publish(c)
}

// removeAdminSocket removes the admin socket of a dead Envoy, unless a living Envoy has the same
// number, because it was started again after a crash.
func (s *server) removeAdminSocket(dead *child) {
	if len(s.find(func(c *child) bool {
		return c.lives() &&
			c.process.EpochNumber == dead.process.EpochNumber
	})) > 0 {
		return
	}
	// A failure is harmless: the final cleanup tries again.
	_ = removeSocket(adminSocket(s.info.Folder, dead.process.EpochNumber))
}

// forgetOldest removes the oldest exited processes from the list while it has more than maxExits.
func (s *server) forgetOldest() {
	exits := s.find(func(c *child) bool { return !c.lives() })
	for len(exits) > maxExits {
		s.drop(exits[0])
		exits = exits[1:]
	}
}

// lastLinesWait bounds the wait for the end of a log pipe, which a descendant of Envoy may hold
// open.
const lastLinesWait = 200 * time.Millisecond

// publish sends an exit to the connected agent.
func (s *server) publish(c *child) {
	timer := time.NewTimer(lastLinesWait)
	defer timer.Stop()
	select {
	case <-c.pipe.closed:
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.agent != nil {
		s.agent.push(c.view())
	}
}

// standInFor makes the keeper answer hot-restart messages for a dead parent whose child lives,
// unless another living epoch uses the same socket.
func (s *server) standInFor(parent *child) {
	if !parent.process.HotRestart {
		return
	}
	var heir *child
	for _, c := range s.lineage(parent.process.Lineage) {
		if c.process.RestartEpoch == parent.process.RestartEpoch+1 {
			heir = c
		}
		if c.process.RestartEpoch%generations == parent.process.RestartEpoch%generations {
			return
		}
	}
	if heir == nil || heir.standIn != nil {
		return
	}
	path := hotRestartSocket(s.info.SocketPath, "parent", s.info.BaseIDOf(parent.process.Lineage),
		parent.process.RestartEpoch)
	socket, err := bindStandIn(path)
	if err != nil {
		s.logf("cannot stand in for epoch %d, whose child will abort: %v",
			parent.process.EpochNumber, err)
		return
	}
	heir.standIn = newStandIn(s.info, parent.process, socket)
	heir.process.ParentedByKeeper = true
	go heir.standIn.serve()
}
