package parts

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// PauseProcess sends SIGSTOP to a process and waits until all of its threads are stopped, because a
// thread on another CPU may run a little longer. resume sends SIGCONT; only its first call has an
// effect.
func PauseProcess(t testing.TB, pid int) (resume func()) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatalf("SIGSTOP to %d: %v", pid, err)
	}
	Eventually(t, time.Minute, fmt.Sprintf("process %d is stopped", pid), func() bool {
		return isStopped(pid)
	})
	return sync.OnceFunc(func() {
		t.Helper()
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Errorf("SIGCONT to %d: %v", pid, err)
		}
	})
}

// isStopped reports whether all threads of a process are stopped or have exited.
func isStopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has exited
		}
		_, state, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" "))
		if len(state) == 0 || !strings.ContainsRune("TZX", rune(state[0])) {
			return false
		}
	}
	return true
}
