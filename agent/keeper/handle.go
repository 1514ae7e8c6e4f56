package keeper

import (
	"context"
	"errors"
)

// handle executes a request. Operations that may take long run in goroutines of their own, so that
// requests do not wait for each other.
func (s *server) handle(c *connection, r request) {
	if c.role == roleUpgrade && r.Operation != operationReexecute {
		s.answerDone(c, r.Number, false, refuse(CodeForbidden, "role %q may not %s", c.role,
			r.Operation))
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
		s.call(c, r.Number, func(ctx context.Context) {
			processes, err := s.measured.get(ctx, MaxMeasurementAge)
			if err != nil {
				s.answerDone(c, r.Number, false, err)
				return
			}
			s.answerList(c, r.Number, processes)
		})
	case operationSignal:
		s.answerDone(c, r.Number, false, s.signal(r.ID, r.Signal))
	case operationAnnotate:
		s.answerDone(c, r.Number, false, s.annotate(r.ID, r.Note))
	case operationForget:
		s.answerDone(c, r.Number, false, s.forget(r.ID))
	case operationRun:
		s.call(c, r.Number, func(ctx context.Context) {
			result, err := s.run(ctx, r.Run)
			if err != nil {
				c.answer(response{Number: r.Number, Error: asRefusal(err)})
				return
			}
			c.answer(response{Number: r.Number, Run: result})
		})
	case operationAccess:
		s.call(c, r.Number, func(context.Context) {
			result, err := s.access(r.Path)
			if err != nil {
				c.answer(response{Number: r.Number, Error: asRefusal(err)})
				return
			}
			c.answer(response{Number: r.Number, Access: result})
		})
	case operationCancel:
		c.stop(r.Cancel)
		s.answerDone(c, r.Number, false, nil)
	case operationClearInitializing:
		if r.Lineage < 0 || r.Lineage >= MaxLineages {
			s.answerDone(c, r.Number, false,
				refuse(CodeInvalid, "there is no lineage %d, only 0 to %d", r.Lineage,
					MaxLineages-1))
			return
		}
		cleared, err := s.memory.clearInitializing(s.info.BaseIDOf(r.Lineage))
		s.answerDone(c, r.Number, cleared, err)
	case operationStopAccepting:
		s.call(c, r.Number, func(context.Context) {
			s.answerDone(c, r.Number, false, s.stopAccepting())
		})
	case operationSteer:
		s.call(c, r.Number, func(context.Context) {
			s.answerDone(c, r.Number, false, s.steer(r.ID, r.To, r.Closes))
		})
	case operationCleanup:
		s.answerDone(c, r.Number, false, s.cleanup())
	case operationShutdown:
		go s.shutdown() // closes the connection instead of sending an answer
	case operationReexecute:
		s.call(c, r.Number, func(context.Context) {
			s.answerDone(c, r.Number, false, s.reexecute())
		})
	default:
		s.answerDone(c, r.Number, false,
			refuse(CodeInvalid, "the keeper does not know the operation %q", r.Operation))
	}
}

// call runs work in a goroutine of its own. The context of work ends when the request is cancelled
// or the connection is lost. At most maxCalls calls of a connection run at the same time.
func (s *server) call(c *connection, number uint64, work func(ctx context.Context)) {
	ctx, end, refusal := c.begin(number)
	if refusal != nil {
		s.answerDone(c, number, false, refusal)
		return
	}
	c.running.Go(func() {
		defer end()
		work(ctx)
	})
}

func (s *server) answerDone(c *connection, number uint64, done bool, err error) {
	r := response{Number: number, Done: done}
	if err != nil {
		r.Error = asRefusal(err)
	}
	c.answer(r)
}

// answerList sends one message for each process, so that no message exceeds rpc.MaxMessageBytes,
// and an empty message at the end.
func (s *server) answerList(c *connection, number uint64, processes []Process) {
	for i := range processes {
		c.answer(response{Number: number, More: true, Process: &processes[i]})
	}
	c.answer(response{Number: number})
}

// list returns all processes.
func (s *server) list() []Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	processes := make([]Process, 0, len(s.children))
	for _, c := range s.children {
		processes = append(processes, c.view())
	}
	return processes
}

// cleanup removes the files that Envoys leave behind. It fails while one lives.
func (s *server) cleanup() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if living := s.find((*child).lives); len(living) > 0 {
		return refuse(CodeEnvoysLive, "%d Envoys live (pid %d): their files stay", len(living),
			living[0].process.PID)
	}
	if err := removeSockets(s.info); err != nil {
		return err
	}
	var failures []error
	for lineage := range MaxLineages {
		if exists, ours := s.memory.own(s.info.BaseIDOf(lineage)); exists && ours {
			failures = append(failures, s.memory.remove(s.info.BaseIDOf(lineage)))
		}
	}
	return errors.Join(failures...)
}
