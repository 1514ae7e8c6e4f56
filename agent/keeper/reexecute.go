package keeper

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Flags that one image of the keeper gives the next, or who starts it.
const (
	flagListen = "listen-fd"
	flagLock   = "lock-fd"
	flagState  = "state-fd" // descriptor of the state
	flagTakes  = "takes"    // exit 0 when a state of this format can be taken over
)

const (
	checkWait = 5 * time.Second // for a program to say that it can become the keeper
	// For a slow agent to take the lines that are on their way to it.
	writerWait = 200 * time.Millisecond
)

// reexecute replaces the keeper by the program that is installed now: same pid, same Envoys, same
// sockets. It returns only if that failed; then nothing has changed. Agents lose their connection
// and find the new image behind the same socket.
func (s *server) reexecute() error {
	if err := s.checkProgram(); err != nil {
		return err
	}
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
	var kept inherited
	defer kept.close()
	state, err := s.save(&kept)
	if err != nil {
		return refuse(CodeReexecute, "the keeper goes on as it is: %v", err)
	}
	arguments := append(s.ownArguments(), "-"+flagState+"="+strconv.Itoa(state))
	// An exec from another thread would end this one, and tell Envoy that its parent has died.
	s.main.do(func() {
		if err = blockSignals(); err != nil {
			return
		}
		err = unix.Exec(s.program, arguments, os.Environ())
		unblockSignals()
	})
	return refuse(CodeReexecute, "the keeper goes on as it is: execute %s: %v", s.program, err)
}

// ownArguments are those this image was started with, but for what the image before added.
func (s *server) ownArguments() []string {
	return slices.DeleteFunc(append([]string{os.Args[0]}, s.options.arguments...),
		func(argument string) bool {
			return strings.HasPrefix(argument, "-"+flagState+"=")
		})
}

// checkProgram asks the installed program first: were it broken or older, Envoy would end with the
// keeper.
func (s *server) checkProgram() error {
	result, err := s.run(context.Background(), &runSpec{
		Path: s.program, Args: []string{"-" + flagTakes, strconv.Itoa(stateFormat)},
		Env: os.Environ(), Timeout: checkWait,
	})
	switch {
	case err != nil:
		return refuse(CodeReexecute, "the keeper goes on as it is: %v", err)
	case result.Exit.Code != 0:
		return refuse(CodeReexecute, "the keeper goes on as it is: %s cannot take over from it "+
			"(exit %d %s): %s",
			s.program, result.Exit.Code, result.Exit.Signal,
			strings.TrimSpace(string(result.Stderr)))
	}
	return nil
}
