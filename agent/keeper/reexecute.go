package keeper

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"outrider.org/outrider/agent/reexec"
)

// Flags that the keeper passes to the installed program when it re-executes itself or checks
// whether it can.
const (
	flagState = "state-fd" // descriptor of the saved state
	flagTakes = "takes"    // exit with code 0 if the program can read a state of this format
)

const (
	checkWait = 5 * time.Second // limit of the check of the installed program
	// writerWait bounds the wait until log lines that are being sent have reached a slow agent.
	writerWait = 200 * time.Millisecond
)

// reexecute replaces the keeper's program by the installed one; pid, Envoys and sockets remain. It
// returns only after a failure, and then nothing has changed. Agents must connect again.
func (s *server) reexecute() error {
	if err := s.checkProgram(); err != nil {
		return err
	}
	releaseChecks, err := s.holdChecks()
	if err != nil {
		return err
	}
	defer releaseChecks()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return refuse(CodeStopping, "the keeper is stopping")
	}
	if agent := s.agent; agent != nil {
		release := agent.holdLines(writerWait)
		defer release()
	}
	for _, c := range s.children {
		c.pipe.pause()
	}
	defer func() {
		for _, c := range s.children {
			c.pipe.resume()
		}
	}()
	var next reexec.NextImage
	defer next.Close()
	state, err := s.save(&next)
	if err != nil {
		return refuse(CodeReexecuteFailed, "cannot re-execute the keeper: %v", err)
	}
	// exec from another thread would end the main thread; the kernel would then send Envoy its
	// parent death signal.
	s.main.do(func() {
		if err = blockSignals(); err != nil {
			return
		}
		err = next.Exec(s.program, map[string]int{flagState: state})
		unblockSignals()
	})
	return refuse(CodeReexecuteFailed, "cannot re-execute the keeper: %v", err)
}

// checkProgram checks that the installed program can read the state. A broken or older program
// would terminate the Envoys.
func (s *server) checkProgram() error {
	result, err := s.run(context.Background(), &runSpec{
		Path: s.program, Args: []string{"-" + flagTakes, strconv.Itoa(stateFormat)},
		Env: os.Environ(), Timeout: checkWait,
	})
	switch {
	case err != nil:
		return refuse(CodeReexecuteFailed, "cannot re-execute the keeper: %v", err)
	case result.Exit.Code != 0:
		return refuse(CodeReexecuteFailed, "cannot re-execute the keeper: %s cannot replace it "+
			"(exit %d %s): %s",
			s.program, result.Exit.Code, result.Exit.Signal,
			strings.TrimSpace(string(result.Stderr)))
	}
	return nil
}
