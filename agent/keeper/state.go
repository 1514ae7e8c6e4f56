package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// stateFormat is the version of the state that one image of the keeper leaves to the next. An image
// reads its own format and older ones.
const stateFormat = 1

// savedState is the state of a keeper without its connections. Descriptors have the numbers of the
// new image.
type savedState struct {
	Format   int          `json:"format"`
	Info     Info         `json:"info"`
	Program  string       `json:"program"`
	Listener int          `json:"listener"`
	Lock     int          `json:"lock"`
	Children []savedChild `json:"children"`
	Commands []int        `json:"commands"` // pids, only to be reaped
	Lines    []Log        `json:"lines"`
}

type savedChild struct {
	Process Process  `json:"process"`
	Last    []string `json:"last"`
	Pipe    int      `json:"pipe"` // -1: ended
	Partial []byte   `json:"partial"`
	Cut     int      `json:"cut"`
	Rescue  int      `json:"rescue"` // -1: none
	Parent  Process  `json:"parent"` // the dead parent, if there is a stand-in
}

// inherited collects the descriptors that the next image inherits.
type inherited struct{ numbers []int }

// add duplicates a descriptor without close-on-exec.
func (i *inherited) add(file syscall.Conn) (int, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	number := -1
	var failure error
	err = raw.Control(func(fd uintptr) { number, failure = unix.FcntlInt(fd, unix.F_DUPFD, 3) })
	if err = errors.Join(err, failure); err != nil {
		return -1, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	i.numbers = append(i.numbers, number)
	return number, nil
}

func (i *inherited) close() {
	for _, number := range i.numbers {
		_ = unix.Close(number)
	}
}

// save writes the state to a memory file that survives exec. The caller holds the lock and has
// paused the pipes.
func (s *server) save(to *inherited) (stateFD int, err error) {
	state := savedState{
		Format: stateFormat, Info: s.info, Program: s.program,
		Commands: slices.Collect(maps.Keys(s.commands)), Lines: s.lines.snapshot(),
	}
	state.Info.Reexecuted++
	if state.Listener, err = to.add(s.listener); err != nil {
		return -1, err
	}
	if state.Lock, err = to.add(s.lock); err != nil {
		return -1, err
	}
	for _, c := range s.children {
		saved := savedChild{Process: c.process, Last: c.pipe.lastLines(), Pipe: -1, Rescue: -1}
		if !c.pipe.ended() {
			if saved.Pipe, err = to.add(c.pipe.file); err != nil {
				return -1, err
			}
			saved.Partial, saved.Cut = c.pipe.splitter.partial, c.pipe.splitter.cut
		}
		if c.standIn != nil {
			if number, err := to.add(c.standIn.socket); err == nil { // else it has ended
				saved.Rescue, saved.Parent = number, c.standIn.parent
			}
		}
		state.Children = append(state.Children, saved)
	}
	number, err := unix.MemfdCreate("outrider-keeper", 0)
	if err != nil {
		return -1, fmt.Errorf("make a memory file: %w", err)
	}
	to.numbers = append(to.numbers, number)
	content, err := json.Marshal(state)
	if err != nil {
		return -1, fmt.Errorf("encode the state: %w", err)
	}
	for offset := 0; offset < len(content); {
		n, err := unix.Pwrite(number, content[offset:], int64(offset))
		if err != nil {
			return -1, fmt.Errorf("write the state: %w", err)
		}
		offset += n
	}
	return number, nil
}

// restore loads the state of the previous image.
func (s *server) restore(file *os.File) error {
	content, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
	_ = file.Close()
	if err != nil {
		return fmt.Errorf("cannot restore the keeper: %w", err)
	}
	var state savedState
	if err := json.Unmarshal(content, &state); err != nil {
		return fmt.Errorf("cannot restore the keeper: %w", err)
	}
	if state.Format < 1 || state.Format > stateFormat {
		return fmt.Errorf("cannot restore the keeper: its state has format %d, known is "+
			"up to %d", state.Format, stateFormat)
	}
	s.info, s.program = state.Info, state.Program
	s.info.Protocol, s.info.Version = ProtocolVersion, s.options.Version
	if s.listener, err = listenerOf(inheritedFile(state.Listener, "listener")); err != nil {
		return err
	}
	s.lock = inheritedFile(state.Lock, lockName)
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
	from := origin{saved.Process.ID, saved.Process.Number}
	c := &child{process: saved.Process, pipe: newLogPipe(from, nil, s.lines)}
	c.pipe.last.lines = saved.Last
	if saved.Pipe < 0 {
		close(c.pipe.closed)
	} else {
		c.pipe.file = inheritedFile(saved.Pipe, "log pipe")
		c.pipe.splitter = lineSplitter{partial: saved.Partial, cut: saved.Cut}
		c.pipe.start()
	}
	if saved.Rescue >= 0 {
		file := inheritedFile(saved.Rescue, "stand-in")
		if socket, err := net.FilePacketConn(file); err == nil {
			c.standIn = newStandIn(s.info, saved.Parent, socket.(*net.UnixConn))
			go c.standIn.serve()
		}
		_ = file.Close()
	}
	return c
}

// inheritedFile wraps a descriptor and sets close-on-exec.
func inheritedFile(number int, name string) *os.File {
	unix.CloseOnExec(number)
	return os.NewFile(uintptr(number), name)
}
