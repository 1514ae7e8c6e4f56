package keeper

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// child is an Envoy. The lock of the server guards its fields.
type child struct {
	process Process // without the fields that view and MeasureProcesses set
	pipe    *logPipe
	standIn *standIn // answers hot-restart messages for a dead parent; nil = none
}

func (c *child) lives() bool { return c.process.Exit == nil }

// view returns the process with its last log lines, as it is sent to agents.
func (c *child) view() Process {
	process := c.process
	process.LastLines = c.pipe.lastLines()
	return process
}

// livingPIDs returns the living processes in the order of their start.
func (s *server) livingPIDs() (pids []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.find((*child).lives) {
		pids = append(pids, c.process.PID)
	}
	return pids
}

// find returns the Envoys that match, in the order of their start.
func (s *server) find(match func(*child) bool) []*child {
	var found []*child
	for _, c := range s.children {
		if match(c) {
			found = append(found, c)
		}
	}
	return found
}

func (s *server) byID(id string) (*child, *Error) {
	for _, c := range s.children {
		if c.process.ID == id {
			return c, nil
		}
	}
	return nil, refuse(CodeNotFound, "there is no process %q", id)
}

// start forks an Envoy.
func (s *server) start(spec *StartSpec) (Process, error) {
	if err := checkStart(spec); err != nil {
		return Process{}, err
	}
	read, write, err := newPipe()
	if err != nil {
		return Process{}, err
	}
	defer func() { _ = write.Close() }()
	// Record the ports of the parent's listeners. The parent closes them once the new Envoy is
	// live, but clients may remain connected.
	if _, err := s.listened.look(); err != nil {
		s.logf("list the listeners before a start: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if refusal := s.mayStart(spec); refusal != nil {
		_ = read.Close()
		return Process{}, refusal
	}
	output := int(write.Fd())
	pid, err := s.main.fork(command{path: spec.Path, args: spec.Args, env: spec.Env, stdout: output,
		stderr: output})
	if err != nil {
		_ = read.Close()
		return Process{}, refuse(codeOfFork(err), "start %s: %v", spec.Path, err)
	}
	c := &child{
		process: Process{ID: spec.ID, RestartEpoch: spec.RestartEpoch,
			EpochNumber: spec.EpochNumber, Lineage: spec.Lineage,
			PID: pid, Path: spec.Path, HotRestart: spec.HotRestart, Started: time.Now(),
			Note: spec.Note, OutriderListeners: spec.OutriderListeners},
		pipe: newLogPipe(origin{spec.ID, spec.EpochNumber}, read, s.lines),
	}
	s.children = append(s.children, c)
	c.pipe.start()
	s.updateIdleTimer()
	s.reap() // the process may have exited before it was registered
	return c.view(), nil
}

// maxOwn is the maximum number of addresses in StartSpec.OutriderListeners.
const maxOwn = 16

func checkStart(spec *StartSpec) error {
	switch {
	case spec == nil:
		return refuse(CodeInvalid, "start: what is to be started is missing")
	case len(spec.ID) == 0 || len(spec.ID) > 64:
		return refuse(CodeInvalid, "start: an id has 1 to 64 bytes, not %d", len(spec.ID))
	case spec.RestartEpoch < 0:
		return refuse(CodeInvalid, "start: epoch %d is negative", spec.RestartEpoch)
	case spec.Lineage < 0 || spec.Lineage >= MaxLineages:
		return refuse(CodeInvalid, "start: there is no lineage %d, only 0 to %d", spec.Lineage,
			MaxLineages-1)
	case !filepath.IsAbs(spec.Path):
		return refuse(CodeInvalid, "start: %q is not an absolute path", spec.Path)
	case len(spec.OutriderListeners) > maxOwn:
		return refuse(CodeInvalid, "start: %d addresses of own listeners: at most %d are stored",
			len(spec.OutriderListeners), maxOwn)
	case len(spec.Note) > maxNote:
		return refuse(CodeInvalid, "start: a note of %d bytes: at most %d are stored", len(spec.Note),
			maxNote)
	}
	return nil
}

// mayStart refuses a start that would harm a living Envoy or that must fail.
func (s *server) mayStart(spec *StartSpec) *Error {
	if s.stopping {
		return refuse(CodeStopping, "the keeper is stopping: nothing is started any more")
	}
	if _, missing := s.byID(spec.ID); missing == nil {
		return refuse(CodeIDInUse, "there is a process %q already", spec.ID)
	}
	if !spec.HotRestart {
		return nil
	}
	parent := spec.RestartEpoch == 0
	if exists, ours := s.memory.own(s.info.BaseIDOf(spec.Lineage)); exists && !ours {
		return refuse(CodeSocketsInUse,
			"epoch %d cannot start: %s belongs to another user; remove it, "+
				"or choose another base_id", spec.RestartEpoch, s.memory.path(s.info.BaseIDOf(spec.Lineage)))
	}
	for _, c := range s.lineage(spec.Lineage) {
		// Epochs whose numbers are equal modulo generations use the same socket names. With
		// --socket-path, Envoy unlinks such sockets even if the other epoch lives.
		if c.process.RestartEpoch%generations == spec.RestartEpoch%generations {
			return refuse(CodeSocketsInUse,
				"epoch %d cannot start: epoch %d (pid %d) lives and uses "+
					"the same hot-restart sockets", spec.RestartEpoch, c.process.RestartEpoch, c.process.PID)
		}
		parent = parent || c.process.RestartEpoch == spec.RestartEpoch-1
	}
	if !parent {
		return refuse(CodeNoParent, "epoch %d cannot start: a hot restart needs epoch %d, which "+
			"does not live; start epoch 0", spec.RestartEpoch, spec.RestartEpoch-1)
	}
	return nil
}

// lineage returns the living Envoys of a lineage.
func (s *server) lineage(number int) []*child {
	return s.find(func(c *child) bool {
		return c.lives() && c.process.HotRestart && c.process.Lineage == number
	})
}

// signal sends a signal to a living process.
func (s *server) signal(id string, number int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, refusal := s.byID(id)
	if refusal != nil {
		return refusal
	}
	signal := unix.Signal(number)
	if number <= 0 || unix.SignalName(signal) == "" {
		return refuse(CodeInvalid, "there is no signal %d", number)
	}
	// Under this lock a pid that has not been reaped cannot belong to another process.
	if !c.lives() {
		return refuse(CodeExited, "process %q has exited", id)
	}
	if err := unix.Kill(c.process.PID, signal); err != nil {
		return fmt.Errorf("send %s to %q (pid %d): %w", unix.SignalName(signal), id, c.process.PID,
			err)
	}
	return nil
}

// annotate stores the agent's note on a process.
func (s *server) annotate(id string, note []byte) error {
	if len(note) > maxNote {
		return refuse(CodeInvalid, "a note of %d bytes: at most %d are stored", len(note), maxNote)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, refusal := s.byID(id)
	if refusal != nil {
		return refusal
	}
	c.process.Note = slices.Clone(note)
	return nil
}

// forget removes a process that has exited from the list.
func (s *server) forget(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, refusal := s.byID(id)
	if refusal != nil {
		return refusal
	}
	if c.lives() {
		return refuse(CodeEnvoysLive, "process %q (pid %d) lives: it cannot be forgotten", id,
			c.process.PID)
	}
	s.drop(c)
	return nil
}

// drop removes an exited process from the list and closes its log pipe. A descendant of Envoy that
// still writes to the pipe then gets EPIPE.
func (s *server) drop(c *child) {
	_ = c.pipe.file.Close()
	s.children = slices.DeleteFunc(s.children, func(other *child) bool { return other == c })
}
