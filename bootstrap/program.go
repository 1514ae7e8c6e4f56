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

	"outrider.org/outrider/agent/typedconfig"
)

// installedProgram is the path of the program in packages.
const installedProgram = "/usr/libexec/outrider/outrider-bootstrap"

// RenderProgram renders bootstraps by running outrider-bootstrap (see the package comment). It
// caches the last result in memory, because a reload often requests the same bootstrap again, and
// with a CachePath also in a file, for the next start. The zero value searches for the program in
// the directory of the running program, then in that of the packages.
type RenderProgram struct {
	Path        string        // "" = found automatically
	CPULimit    time.Duration // maximum CPU time; 0 = 20 s
	MemoryLimit uint64        // maximum memory in bytes; 0 = 512 MiB
	// CachePath is the path of a file (mode 0600) for the last result. Results of requests with
	// ResultIsSecret are not stored; "" = none.
	CachePath string
	// ExpectedVersion is the expected version of the program; results of another one are not
	// cached.
	ExpectedVersion string
	Log             *slog.Logger // for warnings; nil = none

	once         sync.Once
	rendering    chan struct{}     // semaphore, held while rendering; guards the fields below
	lastQuestion [sha256.Size]byte // hash of the last question
	result       *Rendered
}

// Render renders a bootstrap. The error is an *Error if a user's file is wrong, a
// *RenderProgramError if the program does not answer.
func (p *RenderProgram) Render(ctx context.Context, request Request) (*Rendered, error) {
	request.Input.AdminSocket = AdminSocketPlaceholder
	question, err := json.Marshal(p.question(request))
	if err != nil {
		return nil, fmt.Errorf("encode the request to outrider-bootstrap: %w", err)
	}
	sum := sha256.Sum256(question)
	p.once.Do(func() { p.rendering = make(chan struct{}, 1) })
	select {
	case p.rendering <- struct{}{}:
		defer func() { <-p.rendering }()
	case <-ctx.Done():
		return nil, &RenderProgramError{Err: fmt.Errorf("render the bootstrap: another bootstrap "+
			"is "+
			"still being rendered: %w", context.Cause(ctx))}
	}
	if p.result != nil && p.lastQuestion == sum {
		return p.result, nil
	}
	render := p.cachedOrRun
	if request.ResultIsSecret {
		render = p.run
	}
	rendered, err := render(ctx, question)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && outOfMemory.Match(exit.Stderr) {
		return nil, request.LimitError("rendering it takes more than %d MiB of memory", p.memory()>>20)
	}
	if err != nil {
		return nil, err
	}
	p.lastQuestion, p.result = sum, rendered
	return rendered, nil
}

// cachedOrRun returns the cached result, or runs the program and caches its result.
func (p *RenderProgram) cachedOrRun(ctx context.Context, question []byte) (*Rendered, error) {
	if p.CachePath == "" {
		return p.run(ctx, question)
	}
	identity, err := p.identify(question)
	if err != nil {
		return nil, err
	}
	if rendered := p.loadCache(identity); rendered != nil {
		return rendered, nil
	}
	rendered, err := p.run(ctx, question)
	if err != nil {
		return nil, err
	}
	if err := p.storeCache(identity, rendered); err != nil && p.Log != nil {
		p.Log.Warn("cannot cache the bootstrap; the next start takes longer", "error", err)
	}
	return rendered, nil
}

// outOfMemory matches the messages of the Go runtime when the kernel refuses it more memory. The
// runtime itself may then crash with SIGSEGV. A SIGSEGV in other Go code is reported as "panic:"
// instead.
var outOfMemory = regexp.MustCompile(`out of memory|cannot allocate|^SIGSEGV: `)

// Defaults for RenderProgram. A JSON bootstrap of 16 MB takes about 6 s of CPU time.
const (
	defaultTime   = 20 * time.Second
	defaultMemory = 512 << 20

	typedTime   = 5 * time.Second // CPU time of a check by NewTypedConfigChecker
	typedMemory = 128 << 20
)

func (p *RenderProgram) time() time.Duration { return cmp.Or(p.CPULimit, defaultTime) }

func (p *RenderProgram) memory() uint64 { return cmp.Or(p.MemoryLimit, defaultMemory) }

func (p *RenderProgram) question(request Request) RenderProgramInput {
	return RenderProgramInput{Protocol: RenderProgramProtocol, Time: p.time(), Memory: p.memory(),
		Request: request}
}

// grace is how much longer than RenderProgramInput.MaxDuration the agent waits, so that the program
// can report its own time-out.
const grace = 5 * time.Second

// run renders a bootstrap.
func (p *RenderProgram) run(ctx context.Context, question []byte) (*Rendered, error) {
	answer, err := p.exchange(ctx, "render the bootstrap", question)
	switch {
	case err != nil:
		return nil, err
	case answer.Fault != nil:
		return nil, answer.Fault
	case answer.Failure != "":
		return nil, errors.New(answer.Failure)
	case answer.Rendered == nil:
		return nil, &RenderProgramError{Err: errors.New("render the bootstrap: the answer of " +
			"outrider-bootstrap is empty")}
	}
	return answer.Rendered, nil
}

// CheckTypedConfigs returns the findings for each of configs. An error means that they were not
// checked.
func (p *RenderProgram) CheckTypedConfigs(ctx context.Context, configs []typedconfig.Config) (
	[][]typedconfig.Finding, error) {
	question := p.question(Request{})
	question.Typed = configs
	text, err := json.Marshal(question)
	if err != nil {
		return nil, fmt.Errorf("check typed_configs: %w", err)
	}
	answer, err := p.exchange(ctx, "check typed_configs", text)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && outOfMemory.Match(exit.Stderr) {
		return nil, fmt.Errorf("the typed_config is too large: its check takes more than %d MiB "+
			"of memory",
			p.memory()>>20)
	}
	return answer.Findings, err
}

// NewTypedConfigChecker returns a checker of typed_configs by outrider-bootstrap.
func NewTypedConfigChecker() *typedconfig.Checker {
	p := &RenderProgram{CPULimit: typedTime, MemoryLimit: typedMemory}
	return &typedconfig.Checker{RunProcess: p.CheckTypedConfigs}
}

// exchange runs the program for one question. purpose begins the text of errors.
func (p *RenderProgram) exchange(
	ctx context.Context, purpose string, question []byte,
) (answer RenderProgramOutput, err error) {
	path, err := p.find()
	if err != nil {
		return answer, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.question(Request{}).MaxDuration()+grace)
	defer cancel()
	command := exec.CommandContext(ctx, path)
	command.Stdin = bytes.NewReader(question)
	// The program's environment is only GOGC, so high that rendering an ordinary bootstrap causes
	// no garbage collection.
	command.Dir, command.Env = "/", []string{"GOGC=400"}
	command.WaitDelay = time.Second
	out, err := command.Output()
	if err != nil && ctx.Err() != nil {
		return answer, &RenderProgramError{Err: fmt.Errorf("%s: %s was killed before it "+
			"answered: %w",
			purpose, path, context.Cause(ctx))}
	}
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			complaint, _, _ := bytes.Cut(exit.Stderr, []byte("\n"))
			return answer, &RenderProgramError{Err: fmt.Errorf("%s: %s: %w: %s", purpose, path, err,
				complaint)}
		}
		return answer, runError(fmt.Errorf("%s: %w", purpose, err))
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return answer, &RenderProgramError{Err: fmt.Errorf("%s: cannot decode the answer of %s: %w",
			purpose, path, err)}
	}
	if answer.Unable != "" {
		return answer, &RenderProgramError{Err: errors.New(answer.Unable)}
	}
	return answer, nil
}

func (p *RenderProgram) find() (string, error) {
	if p.Path != "" {
		return p.Path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", &RenderProgramError{Err: fmt.Errorf("find outrider-bootstrap: %w", err)}
	}
	tried := []string{filepath.Join(filepath.Dir(self), "outrider-bootstrap"), installedProgram}
	for _, path := range tried {
		if unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", &RenderProgramError{Missing: true,
		Err: fmt.Errorf("outrider-bootstrap, which renders Envoy's bootstrap, is missing: "+
			"neither %s nor %s can be executed; install it at one of these paths",
			tried[0], tried[1])}
}

// runError converts an error of running the program to a *RenderProgramError.
func runError(err error) error {
	return &RenderProgramError{Err: err, Missing: errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOEXEC)}
}
