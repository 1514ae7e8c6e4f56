package envoy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Runner runs the program at path to its end and returns its output. exit is its exit status, or
// 128 + the number of the signal that ended it. err is set only if the program could not be run.
// The keeper implements Runner with Envoy's own user and sandbox, and Local without them.
type Runner interface {
	Run(ctx context.Context, path string, args []string) (stdout, stderr []byte,
		exit int, err error)
}

// Binary describes an Envoy binary as it reports itself.
type Binary struct {
	Path    string `json:"path"`
	Version string `json:"version"` // "1.40.0"
	// from --version: "<commit>/1.40.0/Clean/RELEASE/BoringSSL"
	Build string `json:"build"`
	// "11.104"; "" if built without hot restart
	HotRestartVersion string          `json:"hot_restart_version"`
	Flags             map[string]bool `json:"flags"`    // long flags from --help, without dashes
	Identity          Identity        `json:"identity"` // of the inspected file
}

// Identity distinguishes files that were at the same path at different times. It is comparable and
// can be stored as JSON.
type Identity struct {
	Device   uint64 `json:"device"`
	Inode    uint64 `json:"inode"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // nanoseconds since 1970
}

// Identify returns the identity of the file at path. It follows symbolic links.
func Identify(path string) (Identity, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Identity{}, err
	}
	identity := Identity{Size: info.Size(), Modified: info.ModTime().UnixNano()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		//nolint:unconvert // its type depends on GOARCH
		identity.Device, identity.Inode = uint64(stat.Dev), stat.Ino
	}
	return identity, nil
}

// ErrNotFound is wrapped by errors that mean there is no executable Envoy.
var ErrNotFound = errors.New("no Envoy that can be run")

// ErrKilled is wrapped by errors of an Envoy that another process killed; a retry may succeed.
var ErrKilled = errors.New("it was killed from outside")

// Selected is the symbolic link to the Envoy selected with "outrider envoy use".
const Selected = "/usr/lib/outrider/envoy"

// ServicePath is systemd's default $PATH of services.
const ServicePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Find returns the path of the Envoy to run: binary, or if that is "" the first one among Selected,
// /usr/local/bin, /usr/bin and $PATH. For Selected it returns the link's target, so that a later
// change of the link has no effect. The error wraps ErrNotFound, lists the paths tried and names
// the fix.
func Find(binary string) (string, error) {
	if binary != "" {
		if err := executable(binary); err != nil {
			return "", fmt.Errorf("%w: [envoy] binary = %q: %w", ErrNotFound, binary, err)
		}
		return binary, nil
	}
	return FindAt(Selected, os.Getenv("PATH"))
}

// FindAt is Find without a configured binary, with selected in place of Selected and search in
// place of $PATH.
func FindAt(selected, search string) (string, error) {
	candidates := []string{selected, "/usr/local/bin/envoy", "/usr/bin/envoy"}
	for _, folder := range filepath.SplitList(search) {
		if filepath.IsAbs(folder) {
			candidates = append(candidates, filepath.Join(folder, "envoy"))
		}
	}
	path, tried := firstExecutable(candidates)
	switch path {
	case "":
		return "", fmt.Errorf("%w: tried %s; %s, or set [envoy] binary", ErrNotFound, tried,
			installHint(filepath.Dir(selected)))
	case selected:
		return filepath.EvalSymlinks(path)
	}
	return path, nil
}

// installHint says how to get an Envoy into the folder of installed ones selected.
func installHint(folder string) string {
	if versions, err := Installed(folder); err == nil && len(versions) > 0 {
		return fmt.Sprintf("Envoy %[1]s is installed but not selected: "+
			"run \"outrider envoy use %[1]s\" as root", versions[0])
	}
	return "run \"outrider envoy install\" as root"
}

// firstExecutable returns the first candidate that can be executed, or "" and the candidates, each
// with the reason if it exists.
func firstExecutable(candidates []string) (path, tried string) {
	var reasons []string
	seen := map[string]bool{}
	for _, path := range candidates {
		folder, err := filepath.EvalSymlinks(filepath.Dir(path)) // /sbin may be /usr/sbin
		if err != nil {
			folder = filepath.Dir(path)
		}
		resolved := filepath.Join(folder, filepath.Base(path))
		if seen[resolved] {
			continue
		}
		seen[resolved] = true
		err = executable(path)
		if err == nil {
			return path, ""
		}
		if !errors.Is(err, os.ErrNotExist) {
			path = fmt.Sprintf("%s (%s)", path, err)
		}
		reasons = append(reasons, path)
	}
	return "", strings.Join(reasons, ", ")
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("is a folder")
	case info.Mode().Perm()&0o111 == 0:
		return errors.New("is not executable")
	}
	return nil
}

var (
	versionPattern    = regexp.MustCompile(`version:\s*([0-9a-f]+/(\d+\.\d+\.\d+[^/\s]*)/\S+)`)
	hotRestartPattern = regexp.MustCompile(`(?m)^\d+\.\d+$`)
	flagPattern       = regexp.MustCompile(`--([a-z][a-z0-9_-]+)`)
)

// Inspect runs the Envoy at path for its version, its hot-restart version and its flags. The three
// runs are concurrent.
func Inspect(ctx context.Context, runner Runner, path string) (*Binary, error) {
	identity, err := Identify(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	binary := &Binary{Path: path, Identity: identity}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		output, err := output(ctx, runner, path, "--version")
		if err != nil {
			return err
		}
		match := versionPattern.FindSubmatch(output)
		if match == nil {
			return fmt.Errorf("%s --version does not answer as an Envoy does: %q", path,
				abbreviate(output))
		}
		binary.Build, binary.Version = string(match[1]), string(match[2])
		return nil
	})
	group.Go(func() error {
		output, err := output(ctx, runner, path, "--hot-restart-version")
		if err != nil {
			return err
		}
		// Envoys without hot restart print a word here.
		binary.HotRestartVersion = string(hotRestartPattern.Find(output))
		return nil
	})
	group.Go(func() error {
		output, err := output(ctx, runner, path, "--help")
		if err != nil {
			return err
		}
		binary.Flags = parseFlags(string(output))
		return nil
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return binary, nil
}

func output(ctx context.Context, runner Runner, path string, flag string) ([]byte, error) {
	stdout, stderr, exit, err := runner.Run(ctx, path, []string{flag})
	if err != nil {
		return nil, fmt.Errorf("run %s %s: %w", path, flag, err)
	}
	if exit == 128+int(syscall.SIGKILL) || exit == 128+int(syscall.SIGTERM) {
		return nil, fmt.Errorf("%s %s: %w", path, flag, ErrKilled)
	}
	if exit != 0 {
		return nil, fmt.Errorf("%s %s exits with %d: %q", path, flag, exit, abbreviate(stderr))
	}
	return append(stdout, stderr...), nil // the stream depends on the flag
}

// parseFlags parses the output of --help: the description of each flag begins with three spaces and
// the flag.
func parseFlags(help string) map[string]bool {
	flags := map[string]bool{}
	_, descriptions, _ := strings.Cut(help, "\nWhere:")
	for line := range strings.Lines(descriptions) {
		if strings.HasPrefix(line, "   -") {
			for _, match := range flagPattern.FindAllStringSubmatch(line, -1) {
				flags[match[1]] = true
			}
		}
	}
	return flags
}

func abbreviate(output []byte) string {
	output = bytes.TrimSpace(output)
	const longest = 300
	if len(output) > longest {
		return string(output[:longest]) + "…"
	}
	return string(output)
}

// Local runs Envoy as a child of this process.
type Local struct {
	User *syscall.Credential // nil: the user of this process
}

// Run implements Runner.
func (l Local) Run(
	ctx context.Context, path string, args []string,
) (stdout, stderr []byte, exit int, err error) {
	var out, errs bytes.Buffer
	command := exec.CommandContext(ctx, path, args...)
	command.Stdout, command.Stderr = &out, &errs
	if l.User != nil {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: l.User}
	}
	command.WaitDelay = time.Second
	err = command.Run()
	if exitError, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
		exit = exitError.ExitCode()
		if status, ok := exitError.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			exit = 128 + int(status.Signal())
		}
		return out.Bytes(), errs.Bytes(), exit, nil
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", ctx.Err(), err)
	}
	return out.Bytes(), errs.Bytes(), 0, err
}
