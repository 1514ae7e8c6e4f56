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
	terminateWait = 5 * time.Second        // SIGTERM to SIGKILL
	successorWait = 300 * time.Millisecond // for an older epoch to follow the newest by itself
	killWait      = 2 * time.Second        // for the kernel to take what was killed
)

// shutdown ends every Envoy, cleans up and lets run return.
func (s *server) shutdown() {
	s.endEnvoys()
	if err := s.cleanup(); err != nil {
		s.complain("clean up: %v", err)
	}
	s.quit()
}

// endEnvoys terminates every Envoy. Of a hot-restart pair only the newest gets SIGTERM: it takes its parent along; an
// older one that got its own first would leave a child that aborts. What does not follow gets its own, and after
// terminateWait SIGKILL.
func (s *server) endEnvoys() {
	s.mu.Lock()
	s.stopping = true
	for pid := range s.commands {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	s.mu.Unlock()
	asked := map[*child]bool{}
	started := time.Now()
	var next time.Time // when the next older epoch is asked
	for {
		s.mu.Lock()
		living := s.find((*child).lives)
		changed := s.changed
		var newest *child
		pending := false
		for _, c := range living {
			switch {
			case !c.process.HotRestart && !asked[c]:
				asked[c] = true
				_ = unix.Kill(c.process.PID, unix.SIGTERM)
			case c.process.HotRestart && asked[c]:
				pending = true
			case c.process.HotRestart && (newest == nil || c.process.Epoch > newest.process.Epoch):
				newest = c
			}
		}
		now := time.Now()
		if newest != nil && !pending && !now.Before(next) {
			asked[newest] = true
			next = now.Add(successorWait)
			_ = unix.Kill(newest.process.PID, unix.SIGTERM)
		}
		left := terminateWait - now.Sub(started)
		if left <= 0 {
			for _, c := range living {
				_ = unix.Kill(-c.process.PID, unix.SIGKILL)
				_ = unix.Kill(c.process.PID, unix.SIGKILL)
			}
			left = killWait + terminateWait - now.Sub(started)
		}
		s.mu.Unlock()
		if len(living) == 0 || left <= 0 {
			return
		}
		select {
		case <-changed:
			next = time.Now().Add(successorWait)
		case <-time.After(min(left, successorWait)):
		}
	}
}

// quit closes everything and lets run return.
func (s *server) quit() {
	s.quitOnce.Do(func() {
		s.mu.Lock()
		s.stopping = true
		_ = s.listener.Close()
		for c := range s.all {
			_ = c.socket.Close()
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
		s.remove(filepath.Join(s.info.Folder, lockName)) // last: the next keeper may begin
		_ = s.lock.Close()
		s.main.stop()
	})
}

func (s *server) remove(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.complain("clean up: %v", err)
	}
}
