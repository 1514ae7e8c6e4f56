package keeper

import "errors"

// handle does what a request asks. What takes long is done beside the reader, so that requests do not wait for each other.
func (s *server) handle(c *connection, r request) {
	if !allowed(c.role, r.Operation) {
		c.answer(response{Number: r.Number, Error: refuse(CodeForbidden, "%q is not for a connection of role %q", r.Operation, c.role)})
		return
	}
	switch r.Operation {
	case operationStart:
		process, err := s.start(r.Start)
		if err != nil {
			c.answer(response{Number: r.Number, Error: asRefusal(err)})
			return
		}
		c.answer(response{Number: r.Number, Process: &process})
	case operationList:
		s.answerList(c, r.Number, s.list())
	case operationMeasure:
		s.beside(c, func() { s.answerList(c, r.Number, s.measure()) })
	case operationSignal:
		s.answerDone(c, r.Number, false, s.signal(r.ID, r.Signal))
	case operationAnnotate:
		s.answerDone(c, r.Number, false, s.annotate(r.ID, r.Note))
	case operationForget:
		s.answerDone(c, r.Number, false, s.forget(r.ID))
	case operationRun:
		ctx, end := c.begin(r.Number)
		s.beside(c, func() {
			defer end()
			result, err := s.run(ctx, r.Run)
			if err != nil {
				c.answer(response{Number: r.Number, Error: asRefusal(err)})
				return
			}
			c.answer(response{Number: r.Number, Run: result})
		})
	case operationCancel:
		c.stop(r.Cancel)
		s.answerDone(c, r.Number, false, nil)
	case operationClearInitializing:
		if r.Lineage < 0 || r.Lineage >= Lineages {
			s.answerDone(c, r.Number, false, refuse(CodeInvalid, "there is no lineage %d, only 0 to %d", r.Lineage, Lineages-1))
			return
		}
		cleared, err := s.memory.clearInitializing(s.info.BaseIDOf(r.Lineage))
		s.answerDone(c, r.Number, cleared, err)
	case operationCloseDoors:
		s.beside(c, func() { s.answerDone(c, r.Number, false, s.closeDoors()) })
	case operationSteer:
		s.beside(c, func() { s.answerDone(c, r.Number, false, s.steer(r.ID, r.To, r.Closes)) })
	case operationCleanup:
		s.answerDone(c, r.Number, false, s.cleanup())
	case operationShutdown:
		s.beside(c, func() {
			s.endEnvoys()
			s.answerDone(c, r.Number, false, s.cleanup())
			c.flush()
			s.quit()
		})
	case operationReexecute:
		s.beside(c, func() { s.answerDone(c, r.Number, false, s.reexecute()) })
	default:
		s.answerDone(c, r.Number, false, refuse(CodeInvalid, "the keeper does not know the operation %q", r.Operation))
	}
}

func allowed(as role, operation string) bool {
	switch as {
	case roleAgent:
		return true
	case roleObserver:
		return operation == operationList || operation == operationMeasure
	case roleUpgrade:
		return operation == operationReexecute
	}
	return false
}

func (s *server) beside(c *connection, work func()) {
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		work()
	}()
}

func (s *server) answerDone(c *connection, number uint64, done bool, err error) {
	r := response{Number: number, Done: done}
	if err != nil {
		r.Error = asRefusal(err)
	}
	c.answer(r)
}

// answerList sends a frame for each process, so that none grows over its bound, and an empty one at the end.
func (s *server) answerList(c *connection, number uint64, processes []Process) {
	for i := range processes {
		c.answer(response{Number: number, More: true, Process: &processes[i]})
	}
	c.answer(response{Number: number})
}

// list shows all processes.
func (s *server) list() []Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	processes := make([]Process, 0, len(s.children))
	for _, c := range s.children {
		processes = append(processes, c.view())
	}
	return processes
}

// measure shows all processes with what the living ones use. It reads the kernel's tables without the lock, and one at a
// time: they may be long.
func (s *server) measure() []Process {
	s.measuring.Lock()
	defer s.measuring.Unlock()
	processes := s.list()
	var pids []int
	for _, p := range processes {
		if p.Exit == nil {
			pids = append(pids, p.PID)
		}
	}
	system := usage{proc: "/proc"}
	found, err := system.traffic(pids, s.info.Folder)
	failed := err != nil
	if failed {
		s.complain("%v", err)
	}
	for i := range processes {
		p := &processes[i]
		if p.Exit != nil {
			continue
		}
		its := found[p.PID]
		if failed { // a stop must not take what was not seen for nothing
			its.downstream = max(its.downstream, 1)
		}
		p.Connections, p.Downstream = its.established, &its.downstream
		if p.MemoryBytes, err = system.memory(p.PID); err != nil {
			p.MemoryBytes = 0 // it has just exited
		}
	}
	return processes
}

// cleanup removes what Envoys leave behind, once none lives.
func (s *server) cleanup() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if living := s.find((*child).lives); len(living) > 0 {
		return refuse(CodeLiving, "%d Envoys live (pid %d): their files stay", len(living), living[0].process.PID)
	}
	if err := removeSockets(s.info); err != nil {
		return err
	}
	var failures []error
	for lineage := range Lineages {
		if exists, ours := s.memory.own(s.info.BaseIDOf(lineage)); exists && ours {
			failures = append(failures, s.memory.remove(s.info.BaseIDOf(lineage)))
		}
	}
	return errors.Join(failures...)
}
