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

// Runner runs the program at path until it exits and returns its output. exit is its exit status,
// or 128 + the number of the signal that ended it. err is set only if the program could not be run.
// The keeper implements Runner with Envoy's user and sandbox, LocalRunner without them.
type Runner interface {
	Run(ctx context.Context, path string, args []string) (stdout, stderr []byte,
		exit int, err error)
}

// Binary describes an Envoy binary by its own output.
type Binary struct {
	Path    string `json:"path"`
	Version string `json:"version"` // "1.40.0"
	// From --version: "<commit>/1.40.0/Clean/RELEASE/BoringSSL".
	Build string `json:"build"`
	// For example "11.104"; "" if Envoy was built without hot restart.
	HotRestartVersion string          `json:"hot_restart_version"`
	Flags             map[string]bool `json:"flags"`    // long flags from --help, without dashes
	Identity          FileIdentity    `json:"identity"` // of the inspected file
}

// FileIdentity distinguishes successive files at one path. It is comparable and can be stored as
// JSON.
type FileIdentity struct {
	Device   uint64 `json:"device"`
	Inode    uint64 `json:"inode"`
	Size     int64  `json:"size"`
	Modified int64  `json:"modified"` // nanoseconds since 1970
}

// Identify returns the identity of the file at path. It follows symbolic links.
func Identify(path string) (FileIdentity, error) {
	info, err := os.Stat(path)
	if err != nil {
		return FileIdentity{}, err
	}
	identity := FileIdentity{Size: info.Size(), Modified: info.ModTime().UnixNano()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		//nolint:unconvert // its type depends on GOARCH
		identity.Device, identity.Inode = uint64(stat.Dev), stat.Ino
	}
	return identity, nil
}

// ErrNotFound is wrapped by errors about a missing executable Envoy.
var ErrNotFound = errors.New("no executable Envoy found")

// ErrKilled is wrapped by errors of an Envoy run that another process killed. A retry may succeed.
var ErrKilled = errors.New("killed by another process")

// SelectedPath is the symbolic link to the Envoy that "outrider envoy use" selects.
const SelectedPath = "/usr/lib/outrider/envoy"

// ServiceSearchPath is the $PATH that systemd sets for services by default.
const ServiceSearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Find returns the path of the Envoy to run: binary, or if that is "" the first one among
// SelectedPath, /usr/local/bin, /usr/bin and $PATH. For SelectedPath it returns the link's target,
// so that a later change of the link has no effect. The error wraps ErrNotFound, lists the paths
// tried and names the fix.
func Find(binary string) (string, error) {
	if binary != "" {
		if err := executable(binary); err != nil {
			return "", fmt.Errorf("%w: [envoy] binary = %q: %w", ErrNotFound, binary, err)
		}
		return binary, nil
	}
	return FindAt(SelectedPath, os.Getenv("PATH"))
}

// FindAt is Find without a configured binary. selected replaces SelectedPath, search replaces
// $PATH.
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

// installHint returns advice on how to install an Envoy in a folder and select it.
func installHint(folder string) string {
	if versions, err := InstalledVersions(folder); err == nil && len(versions) > 0 {
		return fmt.Sprintf("Envoy %[1]s is installed but not selected: "+
			"run \"outrider envoy use %[1]s\" as root", versions[0])
	}
	return "run \"outrider envoy install\" as root"
}

// firstExecutable returns the first executable candidate. If there is none, it returns "" and the
// list of candidates; for each existing one, the list has the reason why it cannot be executed.
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

// Inspect runs the Envoy at path three times, concurrently, for its version, hot-restart version
// and flags.
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
			return fmt.Errorf("%s --version does not print an Envoy version: %q", path,
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
		// An Envoy without hot restart prints a word instead of a version, which does not match.
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
	// whether Envoy writes to stdout or stderr depends on the flag
	return append(stdout, stderr...), nil
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

// LocalRunner runs Envoy as a child of this process.
type LocalRunner struct {
	User *syscall.Credential // nil: the user of this process
}

// Run implements Runner.
func (l LocalRunner) Run(
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
