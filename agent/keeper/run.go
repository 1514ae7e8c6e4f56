package keeper

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// outputWait bounds reading the output after a command has ended: a descendant may hold the pipe.
const outputWait = time.Second

// run executes a short command such as --version or --mode validate as Envoy's user.
func (s *server) run(ctx context.Context, spec *runSpec) (*RunResult, error) {
	if spec == nil || !filepath.IsAbs(spec.Path) || spec.Timeout <= 0 {
		return nil, refuse(CodeInvalid, "run: an absolute path and a time-out are needed")
	}
	ctx, cancel := context.WithTimeout(ctx, spec.Timeout)
	defer cancel()
	stdout, stdoutEnd, err := newPipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = stdout.Close() }()
	stderr, stderrEnd, err := newPipe()
	if err != nil {
		_ = stdoutEnd.Close()
		return nil, err
	}
	defer func() { _ = stderr.Close() }()

	ended := make(chan Exit, 1)
	s.mu.Lock()
	if s.stopping || len(s.commands) >= maxRuns {
		err = refuse(CodeLimit, "run %s: %d commands run already, or the keeper is stopping",
			spec.Path, len(s.commands))
	}
	pid := 0
	if err == nil {
		pid, err = s.main.fork(command{path: spec.Path, args: spec.Args, env: spec.Env,
			stdout: int(stdoutEnd.Fd()), stderr: int(stderrEnd.Fd())})
		if err != nil {
			err = refuse(codeOfFork(err), "run %s: %v", spec.Path, err)
		} else {
			s.commands[pid] = ended
			s.reap() // the process may have exited before it was registered
		}
	}
	s.mu.Unlock()
	_ = stdoutEnd.Close()
	_ = stderrEnd.Close()
	if err != nil {
		return nil, err
	}

	outs, errs := collect(stdout), collect(stderr)
	result := &RunResult{}
	select {
	case result.Exit = <-ended:
	case <-ctx.Done():
		result.TimedOut = errors.Is(ctx.Err(), context.DeadlineExceeded)
		s.killCommand(pid)
		result.Exit = <-ended
	}
	_ = stdout.SetReadDeadline(time.Now().Add(outputWait))
	_ = stderr.SetReadDeadline(time.Now().Add(outputWait))
	out, problems := <-outs, <-errs
	result.Stdout, result.Stderr = out.text, problems.text
	result.Truncated = out.truncated || problems.truncated
	return result, nil
}

// killCommand kills a command and its descendants unless it was reaped meanwhile.
func (s *server) killCommand(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, running := s.commands[pid]; running {
		_ = unix.Kill(-pid, unix.SIGKILL)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

type output struct {
	text      []byte
	truncated bool
}

// collect reads to the end and returns the first maxOutput bytes.
func collect(file *os.File) <-chan output {
	result := make(chan output, 1)
	go func() {
		text, _ := io.ReadAll(io.LimitReader(file, maxOutput))
		rest, _ := io.Copy(io.Discard, file)
		result <- output{text, rest > 0}
	}()
	return result
}
