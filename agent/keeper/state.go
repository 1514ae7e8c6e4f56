package keeper

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/reexec"
)

// stateFormat is the version of the state that the keeper saves before it re-executes itself. The
// keeper can restore this format and older ones.
const stateFormat = 1

// savedState is the state of a keeper without its connections. Listener, Lock, Pipe and Rescue are
// numbers of descriptors after the re-execution.
type savedState struct {
	Format   int          `json:"format"`
	Info     Info         `json:"info"`
	Program  string       `json:"program"`
	Listener int          `json:"listener"`
	Lock     int          `json:"lock"`
	Children []savedChild `json:"children"`
	Commands []int        `json:"commands"` // pids of commands, which restore kills
	Lines    []LogLines   `json:"lines"`
}

type savedChild struct {
	Process Process  `json:"process"`
	Last    []string `json:"last"`
	Pipe    int      `json:"pipe"` // -1: all writers have closed it
	Partial []byte   `json:"partial"`
	Cut     int      `json:"cut"`
	Rescue  int      `json:"rescue"` // socket of the stand-in, which answers for Parent; -1: none
	Parent  Process  `json:"parent"` // the dead parent for which the keeper answers
}

// save writes the state to a memory file that survives exec. The caller holds the lock and has
// paused the pipes.
func (s *server) save(to *reexec.NextImage) (stateFD int, err error) {
	state := savedState{
		Format: stateFormat, Info: s.info, Program: s.program,
		Commands: slices.Collect(maps.Keys(s.commands)), Lines: s.lines.snapshot(),
	}
	state.Info.Reexecuted++
	if state.Listener, err = to.Add(s.listener); err != nil {
		return -1, err
	}
	if state.Lock, err = to.Add(s.lock); err != nil {
		return -1, err
	}
	for _, c := range s.children {
		saved := savedChild{Process: c.process, Last: c.pipe.lastLines(), Pipe: -1, Rescue: -1}
		if !c.pipe.ended() {
			if saved.Pipe, err = to.Add(c.pipe.file); err != nil {
				return -1, err
			}
			saved.Partial, saved.Cut = c.pipe.splitter.partial, c.pipe.splitter.cut
		}
		if c.standIn != nil {
			// Add fails if the stand-in has ended and closed its socket.
			if number, err := to.Add(c.standIn.socket); err == nil {
				saved.Rescue, saved.Parent = number, c.standIn.parent
			}
		}
		state.Children = append(state.Children, saved)
	}
	return to.AddState("outrider-keeper", state)
}

// restore loads the state that the keeper saved before it re-executed itself.
func (s *server) restore(file *os.File) error {
	var state savedState
	if err := reexec.ReadState(file, &state); err != nil {
		return fmt.Errorf("cannot restore the keeper: %w", err)
	}
	if state.Format < 1 || state.Format > stateFormat {
		return fmt.Errorf("cannot restore the keeper: its state has format %d, known is "+
			"up to %d", state.Format, stateFormat)
	}
	s.info, s.program = state.Info, state.Program
	s.info.Protocol, s.info.Version = protocolVersion, s.options.Version
	var err error
	if s.listener, err = listenerOf(reexec.InheritedFile(state.Listener, "listener")); err != nil {
		return err
	}
	s.lock = reexec.InheritedFile(state.Lock, lockName)
	s.lines.restore(state.Lines)
	for _, saved := range state.Children {
		s.children = append(s.children, s.restoreChild(saved))
	}
	for _, pid := range state.Commands {
		s.commands[pid] = nil
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	return nil
}

func (s *server) restoreChild(saved savedChild) *child {
	from := origin{saved.Process.ID, saved.Process.EpochNumber}
	c := &child{process: saved.Process, pipe: newLogPipe(from, nil, s.lines)}
	c.pipe.last.lines = saved.Last
	if saved.Pipe < 0 {
		close(c.pipe.closed)
	} else {
		c.pipe.file = reexec.InheritedFile(saved.Pipe, "log pipe")
		c.pipe.splitter = lineSplitter{partial: saved.Partial, cut: saved.Cut}
		c.pipe.start()
	}
	if saved.Rescue >= 0 {
		file := reexec.InheritedFile(saved.Rescue, "stand-in")
		if socket, err := net.FilePacketConn(file); err == nil {
			c.standIn = newStandIn(s.info, saved.Parent, socket.(*net.UnixConn))
			go c.standIn.serve()
		}
		_ = file.Close()
	}
	return c
}
