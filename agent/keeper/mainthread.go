package keeper

import (
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// mainThread runs functions on the main thread. Every fork happens there: PR_SET_PDEATHSIG fires
// when the forking thread ends, and only the main thread lives as long as the process, also across
// exec.
type mainThread struct {
	jobs chan func()
	quit chan struct{}
}

func newMainThread() *mainThread {
	return &mainThread{jobs: make(chan func()), quit: make(chan struct{})}
}

// run executes jobs until stop. It must be called by a goroutine locked to the main thread.
func (t *mainThread) run() error {
	if unix.Gettid() != os.Getpid() {
		return errors.New("the keeper must be run by the main goroutine, locked to the main " +
			"thread in an init function")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case job := <-t.jobs:
			job()
		case <-t.quit:
			return nil
		}
	}
}

func (t *mainThread) stop() { close(t.quit) }

// do runs a job and waits for it. A job must not lock server.mu, which callers may hold.
func (t *mainThread) do(job func()) {
	done := make(chan struct{})
	select {
	case t.jobs <- func() { defer close(done); job() }:
		<-done
	case <-t.quit:
	}
}

// command is a program to fork.
type command struct {
	path           string
	args, env      []string // args without the program's name
	stdout, stderr int      // descriptors for the output of the child
}

// fork starts a command on the main thread, in a process group of its own and the directory /. The
// command has /dev/null as stdin and no descriptors other than stdout and stderr. The kernel sends
// it SIGKILL when the keeper dies; an Envoy with hot restart changes that to SIGTERM.
func (t *mainThread) fork(c command) (pid int, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = null.Close() }()
	err = errShutDown
	t.do(func() {
		pid, err = syscall.ForkExec(c.path, append([]string{c.path}, c.args...), &syscall.ProcAttr{
			Dir:   "/",
			Env:   c.env,
			Files: []uintptr{null.Fd(), uintptr(c.stdout), uintptr(c.stderr)},
			Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true},
		})
	})
	return pid, err
}

var errShutDown = errors.New("the keeper has stopped")
