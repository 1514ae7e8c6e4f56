package bootstrap

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// installedProgram is where packages put the program.
const installedProgram = "/usr/libexec/outrider/outrider-bootstrap"

// Program renders bootstraps with outrider-bootstrap, a program of its own that lives as long as that takes (see the package's
// documentation for the reasons). It remembers the last one: a start, and every reload that changes nothing, asks for the same one
// again; with a Cache the next start does not even need the program. Its zero value looks for the program where it is needed: beside
// the running program, else where packages put it.
type Program struct {
	Path    string        // "" = looked for
	Time    time.Duration // of a processor that rendering may take; 0 = 20 s
	Memory  uint64        // bytes that it may take; 0 = 512 MiB
	Cache   string        // path of the file that remembers the last answer from run to run, 0600, but for secrets; "" = none
	Version string        // that the program is expected to have; of another one nothing is remembered
	Log     *slog.Logger  // where it is told that an answer could not be remembered; nil = nowhere

	once sync.Once
	turn chan struct{}     // holds the one who renders; he owns what follows
	last [sha256.Size]byte // the question that was answered last
	kept *Rendered
}

// Render renders a bootstrap. What is wrong with a file of the user's is an *Error; where the program does not answer it is a *ProgramError.
func (p *Program) Render(ctx context.Context, request Request) (*Rendered, error) {
	request.Input.AdminSocket = AnySocket
	question, err := json.Marshal(p.question(request))
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	sum := sha256.Sum256(question)
	p.once.Do(func() { p.turn = make(chan struct{}, 1) })
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, &ProgramError{Err: fmt.Errorf("render the bootstrap: another one is still being rendered: %w", context.Cause(ctx))}
	}
	if p.kept != nil && p.last == sum {
		return p.kept, nil
	}
	known := p.known
	if request.Secret {
		known = p.ask
	}
	rendered, err := known(ctx, question)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && outOfMemory.Match(exit.Stderr) {
		return nil, request.fault("rendering it takes more than %d MiB of memory", p.memory()>>20)
	}
	if err != nil {
		return nil, err
	}
	p.last, p.kept = sum, rendered
	return rendered, nil
}

// known answers from the cache, if it can, else asks the program and has the cache remember its answer.
func (p *Program) known(ctx context.Context, question []byte) (*Rendered, error) {
	if p.Cache == "" {
		return p.ask(ctx, question)
	}
	identity, err := p.identify(question)
	if err != nil {
		return nil, err
	}
	if rendered := p.recall(identity); rendered != nil {
		return rendered, nil
	}
	rendered, err := p.ask(ctx, question)
	if err != nil {
		return nil, err
	}
	if err := p.remember(identity, rendered); err != nil && p.Log != nil {
		p.Log.Warn("the next start takes longer", "error", err)
	}
	return rendered, nil
}

// outOfMemory is what Go's runtime says as it ends a program that gets no more memory.
var outOfMemory = regexp.MustCompile(`out of memory|cannot allocate`)

// fault is something wrong with the file that takes most to render.
func (r Request) fault(format string, arguments ...any) error {
	for _, file := range []*File{r.Template, r.Custom, r.Override} {
		if file != nil {
			return &Error{File: file.Path, Message: fmt.Sprintf(format, arguments...)}
		}
	}
	return &ProgramError{Err: fmt.Errorf("bootstrap: "+format, arguments...)}
}

// What a template does is not known before it has done it. A JSON bootstrap of 16 MB takes about 6 s of a processor.
const (
	defaultTime   = 20 * time.Second
	defaultMemory = 512 << 20
)

func (p *Program) time() time.Duration { return cmp.Or(p.Time, defaultTime) }

func (p *Program) memory() uint64 { return cmp.Or(p.Memory, defaultMemory) }

func (p *Program) question(request Request) Question {
	return Question{Protocol: Protocol, Time: p.time(), Memory: p.memory(), Request: request}
}

// grace is how much longer than its time the program may take to tell that it took too long.
const grace = 5 * time.Second

// ask runs the program once.
func (p *Program) ask(ctx context.Context, question []byte) (*Rendered, error) {
	path, err := p.find()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.question(Request{}).Wait()+grace)
	defer cancel()
	command := exec.CommandContext(ctx, path)
	command.Stdin = bytes.NewReader(question)
	command.Dir, command.Env = "/", []string{} // the bootstrap depends on nothing but the question
	command.WaitDelay = time.Second
	out, err := command.Output()
	if err != nil && ctx.Err() != nil {
		return nil, &ProgramError{Err: fmt.Errorf("render the bootstrap: %s was ended before it answered: %w", path, context.Cause(ctx))}
	}
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			complaint, _, _ := bytes.Cut(exit.Stderr, []byte("\n"))
			return nil, &ProgramError{Err: fmt.Errorf("render the bootstrap: %s: %w: %s", path, err, complaint)}
		}
		return nil, notRun(fmt.Errorf("render the bootstrap: %w", err))
	}
	var answer Answer
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, &ProgramError{Err: fmt.Errorf("render the bootstrap: the answer of %s: %w", path, err)}
	}
	switch {
	case answer.Fault != nil:
		return nil, answer.Fault
	case answer.Failure != "":
		return nil, errors.New(answer.Failure)
	case answer.Unable != "":
		return nil, &ProgramError{Err: errors.New(answer.Unable)}
	case answer.Rendered == nil:
		return nil, &ProgramError{Err: fmt.Errorf("render the bootstrap: the answer of %s is empty", path)}
	}
	return answer.Rendered, nil
}

func (p *Program) find() (string, error) {
	if p.Path != "" {
		return p.Path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", &ProgramError{Err: fmt.Errorf("find outrider-bootstrap: %w", err)}
	}
	tried := []string{filepath.Join(filepath.Dir(self), "outrider-bootstrap"), installedProgram}
	for _, path := range tried {
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", &ProgramError{Missing: true, Err: fmt.Errorf("outrider-bootstrap, which renders Envoy's bootstrap, is missing: "+
		"neither %s nor %s can be executed; install it there", tried[0], tried[1])}
}

// notRun is why the program did not run: it is not there, may not be executed, or is none; whatever else it is may pass.
func notRun(err error) error {
	return &ProgramError{Err: err, Missing: errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOEXEC)}
}
