package keeper

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	terminateWait = 5 * time.Second // time from SIGTERM to SIGKILL
	killWait      = 2 * time.Second // limit of the wait for the exit after SIGKILL
)

// shutdown terminates all Envoys, removes their files and lets Serve return.
func (s *server) shutdown() {
	s.stopEnvoys()
	if err := s.cleanup(); err != nil {
		s.logf("clean up: %v", err)
	}
	s.quit()
}

// stopEnvoys sends SIGTERM to all Envoys, and SIGKILL to those that still live after terminateWait.
// It returns when none lives, at the latest killWait after SIGKILL.
func (s *server) stopEnvoys() {
	s.mu.Lock()
	s.stopping = true
	for pid := range s.commands {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	s.signalLiving(unix.SIGTERM)
	s.mu.Unlock()
	if s.awaitNoEnvoy(terminateWait) {
		return
	}
	s.mu.Lock()
	s.signalLiving(unix.SIGKILL)
	s.mu.Unlock()
	s.awaitNoEnvoy(killWait)
}

// signalLiving sends a signal to all living Envoys, and SIGKILL also to their descendants.
func (s *server) signalLiving(signal unix.Signal) {
	for _, c := range s.find((*child).lives) {
		if signal == unix.SIGKILL {
			_ = unix.Kill(-c.process.PID, signal)
		}
		_ = unix.Kill(c.process.PID, signal)
	}
}

// awaitNoEnvoy waits until no Envoy lives, at most for limit, and reports whether none does.
func (s *server) awaitNoEnvoy(limit time.Duration) bool {
	deadline := time.After(limit)
	for {
		s.mu.Lock()
		living, changed := len(s.find((*child).lives)), s.changed
		s.mu.Unlock()
		if living == 0 {
			return true
		}
		select {
		case <-changed:
		case <-deadline:
			return false
		}
	}
}

// quit closes all sockets and pipes and lets Serve return.
func (s *server) quit() {
	s.quitOnce.Do(func() {
		s.mu.Lock()
		s.stopping = true
		_ = s.listener.Close()
		for c := range s.all {
			_ = c.conn.Close()
			c.cancel()
		}
		if s.idle != nil {
			s.idle.Stop()
		}
		for _, c := range s.children {
			_ = c.pipe.file.Close()
		}
		s.mu.Unlock()
		if s.options.Socket != "" {
			s.remove(s.options.Socket)
		}
		s.remove(filepath.Join(s.info.Folder, "base-id"))
		s.remove(filepath.Join(s.info.Folder, lockName)) // last: then the next keeper can start
		_ = s.lock.Close()
		s.main.stop()
	})
}

func (s *server) remove(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.logf("clean up: %v", err)
	}
}
